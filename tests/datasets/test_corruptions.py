"""Corruptions: the constants mean what they say, results repeat, and types and scales are kept."""

import numpy as np
import pytest
from PIL import Image

from posterity.datasets import IMAGE_CORRUPTIONS, TABLE_CORRUPTIONS, corrupt, corrupt_table

SEVERITIES = range(1, 6)
COLOURLESS = [kind for kind in IMAGE_CORRUPTIONS if kind != "saturate"]


@pytest.fixture(scope="module")
def images():
    """Coloured scenes of blobs, edges and fine texture, in [0, 1]: [6, 32, 32, 3], float64."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32] / 32
    scenes = []
    for _ in range(6):
        phase, pitch = rng.uniform(0, 6, 3), rng.uniform(4, 25, 3)
        waves = 0.5 + 0.25 * np.sin(pitch * rows[..., None] + phase) * np.cos(pitch[::-1] * columns[..., None])
        edge = 0.2 * (rows + columns > rng.uniform(0.5, 1.5))[..., None] * rng.uniform(-1, 1, 3)
        scenes.append(waves + edge + 0.05 * rng.standard_normal((32, 32, 1)))
    return np.clip(scenes, 0.02, 0.98)


def grey(level, count=20, size=32):
    return np.full((count, size, size, 3), level)


def distance(kind, severity, images):
    return float(np.sqrt(np.mean((corrupt(images, kind, severity) - images) ** 2)))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_stated_standard_deviation(severity):
    """Sixty thousand values: a standard deviation is known to 0.3 %."""
    levels = {kind: values[severity - 1] for kind, values in IMAGE_CORRUPTIONS.items()}
    stated = {
        "gaussian_noise": levels["gaussian_noise"],
        "speckle_noise": 0.5 * levels["speckle_noise"],
        "shot_noise": np.sqrt(0.5 / levels["shot_noise"]),
    }
    for kind, deviation in stated.items():
        noise = corrupt(grey(0.5), kind, severity) - 0.5
        assert abs(noise.mean()) < 4 * deviation / np.sqrt(noise.size)
        np.testing.assert_allclose(noise.std(), deviation, rtol=4 / np.sqrt(2 * noise.size))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulses_have_the_stated_share_half_black_half_white(severity):
    found = corrupt(grey(0.5), "impulse_noise", severity)
    share = IMAGE_CORRUPTIONS["impulse_noise"][severity - 1]
    for value in (0, 1):
        assert abs((found == value).mean() - share / 2) < 4 * np.sqrt(share / 2 / found.size)
    assert np.isin(found, (0, 0.5, 1)).all()


@pytest.mark.parametrize(("severity", "factor"), list(enumerate((0.75, 0.5, 0.4, 0.3, 0.15), 1)))
def test_contrast_is_exact(severity, factor):
    image = np.zeros((1, 2, 2))
    image[0] = [[0.2, 0.4], [0.6, 0.8]]
    expected = 0.5 + factor * np.array([[-0.3, -0.1], [0.1, 0.3]])
    np.testing.assert_allclose(corrupt(image, "contrast", severity)[0], expected, rtol=1e-12)


def test_brightness_and_saturation_are_those_of_hsv(images):
    """Against the standard library's conversion, pixel by pixel."""
    import colorsys

    image = images[:1, :4].copy()
    image[0, 0, 0], image[0, 0, 1] = 0.0, 0.5  # black and grey have no hue
    for severity in SEVERITIES:
        added = IMAGE_CORRUPTIONS["brightness"][severity - 1]
        factor, offset = IMAGE_CORRUPTIONS["saturate"][severity - 1]
        brighter, stronger = (corrupt(image, kind, severity) for kind in ("brightness", "saturate"))
        for index in np.ndindex(image.shape[:3]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[index])
            np.testing.assert_allclose(brighter[index], colorsys.hsv_to_rgb(hue, saturation, min(value + added, 1)))
            changed = colorsys.hsv_to_rgb(hue, min(saturation * factor + offset, 1), value)
            np.testing.assert_allclose(stronger[index], changed, atol=1e-12)


def test_blur_is_a_normal_density():
    image = np.zeros((1, 15, 15))
    image[0, 7, 7] = 1
    found = corrupt(image, "gaussian_blur", 5)[0]
    weights = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    np.testing.assert_allclose(found[7, 3:12] / found[7, 7], weights, rtol=1e-6)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("size", [(32, 32), (28, 28), (12, 20)])
def test_pixelate_is_pillows_box_filter(images, severity, size):
    """Pillow rounds after each of its passes, so up to two steps apart."""
    height, width = size
    image = np.round(images[0, :height, :width] * 255).astype(np.uint8)
    scale = IMAGE_CORRUPTIONS["pixelate"][severity - 1]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    expected = np.asarray(small.resize((width, height), Image.Resampling.BOX)).astype(int)
    found = corrupt(image[None], "pixelate", severity)[0]
    assert found.shape == image.shape
    assert np.abs(found - expected).max() <= 2


def test_zoom_blur_is_the_mean_of_enlarged_images(images):
    """By scipy on whole images, where ours goes along each axis."""
    from scipy import ndimage

    image, factors = images[0], np.arange(1, 1.21, 0.01)
    total = image.copy()
    for factor in factors:
        kept = int(np.ceil(32 / factor))
        start = (32 - kept) // 2
        middle = image[start : start + kept, start : start + kept]
        large = np.asarray(ndimage.zoom(middle, (factor, factor, 1), order=1))
        cut = (len(large) - 32) // 2
        total += large[cut : cut + 32, cut : cut + 32]
    np.testing.assert_allclose(corrupt(images, "zoom_blur", 4)[0], total / (len(factors) + 1), atol=1e-10)
    np.testing.assert_allclose(corrupt(grey(0.3, 1), "zoom_blur", 5), 0.3, atol=1e-12)


def test_fog_is_a_cloud_between_nothing_and_its_amount():
    """A white image turns into (1 + amount * cloud) / (1 + amount), the cloud running from 0 to 1."""
    amount = IMAGE_CORRUPTIONS["fog"][4][0]
    for size in (32, 28):  # a power of two and another: only the first holds the whole cloud
        clouds = (corrupt(np.ones((3, size, size)), "fog", 5) * (1 + amount) - 1) / amount
        assert clouds.min() >= -1e-12
        assert clouds.max() <= 1 + 1e-12
        assert np.abs(clouds[0] - clouds[1]).max() > 0.1
        if size == 32:
            np.testing.assert_allclose(clouds.min((1, 2)), 0, atol=1e-12)
            np.testing.assert_allclose(clouds.max((1, 2)), 1)
    neighbours = np.abs(np.diff(clouds, axis=1)).mean()
    assert neighbours < 0.3 * clouds.std()  # smooth: not noise
    assert (corrupt(np.zeros((1, 8, 8)), "fog", 3) == 0).all()


def test_jpeg_keeps_flat_images_and_blurs_texture(images):
    np.testing.assert_allclose(corrupt(grey(0.5, 1), "jpeg", 5), 0.5, atol=1.5 / 255)
    assert 0.005 < distance("jpeg", 5, images) < 0.2


@pytest.mark.parametrize("kind", COLOURLESS)
def test_severity_raises_the_distance_from_the_clean_image(kind, images):
    distances = [distance(kind, severity, images) for severity in SEVERITIES]
    assert distances[0] > 1e-3
    assert (np.diff(distances) > 0).all(), distances


def test_saturate_goes_down_twice_and_up_three_times(images):
    """The published levels: less colour at 1 and 2, more from 3 on; each branch grows."""
    distances = [distance("saturate", severity, images) for severity in SEVERITIES]
    assert 1e-3 < distances[0] < distances[1]
    assert 1e-3 < distances[2] < distances[3] < distances[4]


@pytest.mark.parametrize("kind", IMAGE_CORRUPTIONS)
def test_type_shape_and_scale_are_kept_and_seeds_repeat(kind, images):
    for dtype in (np.uint8, np.float16, np.float32, np.float64):
        given = (images * 255).astype(dtype) if dtype == np.uint8 else images.astype(dtype)
        before = given.copy()
        found = corrupt(given, kind, 3, seed=1)
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        np.testing.assert_array_equal(given, before)  # the caller's array is left alone
        np.testing.assert_array_equal(found, corrupt(given, kind, 3, seed=1))
        assert 0 <= found.min() < found.max() <= (255 if dtype == np.uint8 else 1)
    random = kind.endswith("noise") or kind == "fog"
    assert np.array_equal(found, corrupt(images, kind, 3, seed=2)) != random


@pytest.mark.parametrize("kind", COLOURLESS)
def test_images_without_a_channel_are_those_of_one_channel(kind, images):
    plain = (images[..., 0] * 255).astype(np.uint8)[:, :28, :30]
    np.testing.assert_array_equal(corrupt(plain, kind, 2), corrupt(plain[..., None], kind, 2)[..., 0])
    assert corrupt(plain[:0], kind, 2).shape == (0, 28, 30)


def test_uint8_and_floats_agree(images):
    whole = np.round(images * 255).astype(np.uint8)
    for kind in ("gaussian_noise", "gaussian_blur", "contrast", "jpeg"):
        np.testing.assert_allclose(corrupt(whole, kind, 3) / 255, corrupt(whole / 255, kind, 3), atol=0.51 / 255)


def test_mistakes_with_images_are_answered(images):
    with pytest.raises(ValueError, match="kind='gausian_noise' is not known; did you mean 'gaussian_noise'"):
        corrupt(images, "gausian_noise", 1)
    for severity in (0, 6, 2.5, "3"):
        with pytest.raises(ValueError, match=r"severity=.* must be a whole number from 1 \(slight\) to 5 \(strong\)"):
            corrupt(images, "fog", severity)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"run from .* to 250.*divide by 255"):
        corrupt(images / images.max() * 250, "fog", 1)
    with pytest.raises(ValueError, match="must lie in"):
        corrupt(np.full((1, 4, 4), np.nan), "fog", 1)
    with pytest.raises(TypeError, match="images are int64; give uint8"):
        corrupt(np.ones((1, 4, 4), np.int64), "fog", 1)
    with pytest.raises(ValueError, match=r"shape \(4, 4\); expected \[N, H, W\]"):
        corrupt(np.ones((4, 4)), "fog", 1)
    with pytest.raises(ValueError, match=r"saturate needs three colours.*1 channel"):
        corrupt(images[..., 0], "saturate", 1)
    with pytest.raises(ValueError, match=r"jpeg takes images of one channel or of three; these have 2"):
        corrupt(images[..., :2], "jpeg", 1)


@pytest.fixture(scope="module")
def table():
    """Twenty thousand rows of three scales and a constant."""
    rng = np.random.default_rng(0)
    return np.column_stack(
        [rng.normal(5, 2, 20_000), rng.exponential(100, 20_000), rng.random(20_000), np.ones(20_000)]
    )


@pytest.mark.parametrize("severity", SEVERITIES)
def test_tables_change_by_the_stated_amounts(table, severity):
    deviation = table.std(0)
    shift = corrupt_table(table, "shift", severity) - table
    amount = TABLE_CORRUPTIONS["shift"][severity - 1]
    np.testing.assert_allclose(np.abs(shift), np.broadcast_to(amount * deviation, table.shape), rtol=1e-6)
    noise = corrupt_table(table, "noise", severity) - table
    np.testing.assert_allclose(noise.std(0), TABLE_CORRUPTIONS["noise"][severity - 1] * deviation, rtol=0.02)
    missing = corrupt_table(table, "missing", severity)[:, :3]
    gone = missing != table[:, :3]
    share = TABLE_CORRUPTIONS["missing"][severity - 1]
    assert abs(gone.mean() - share) < 4 * np.sqrt(share / gone.size)
    np.testing.assert_array_equal(missing[gone], np.broadcast_to(table[:, :3].mean(0), gone.shape)[gone])


def test_tables_repeat_with_their_seed_and_severities_share_their_lots(table):
    for kind in TABLE_CORRUPTIONS:
        first = corrupt_table(table, kind, 2, seed=3)
        np.testing.assert_array_equal(first, corrupt_table(table, kind, 2, seed=3))
        assert not np.array_equal(first, corrupt_table(table, kind, 2, seed=1))
        assert (first[:, 3] == 1).all()
    slight, strong = (corrupt_table(table, "missing", severity) != table for severity in (1, 5))
    assert (slight <= strong).all()


def test_the_units_of_a_table_can_be_those_of_other_rows(table):
    few = table[:2]
    shift = np.abs(corrupt_table(few, "shift", 3, reference=table) - few)
    np.testing.assert_allclose(shift, np.broadcast_to(table.std(0), few.shape), rtol=1e-6)
    with pytest.raises(ValueError, match="x has 4 columns and reference 3"):
        corrupt_table(few, "shift", 3, reference=table[:, :3])


def test_mistakes_with_tables_are_answered(table):
    with pytest.raises(ValueError, match="kind='shifts' is not known; did you mean 'shift'"):
        corrupt_table(table, "shifts", 1)
    with pytest.raises(ValueError, match="severity=9"):
        corrupt_table(table, "shift", 9)
    with pytest.raises(ValueError, match=r"shape \(20000,\); expected a table"):
        corrupt_table(table[:, 0], "shift", 1)
    with pytest.raises(ValueError, match="reference has NaN"):
        corrupt_table(table, "shift", 1, reference=np.full((1, 4), np.nan))
