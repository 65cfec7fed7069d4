"""Networks of PyTorch modules beside PyTorch: values, gradients, dropout, every kind of method, laplace-torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test-torch has an environment with PyTorch")

import torch_modules
from torch import nn
from torch.nn import functional

from posterity import (
    HMC,
    MAP,
    SGHMC,
    SWAG,
    Categorical,
    DeepEnsemble,
    Fixed,
    Gaussian,
    Laplace,
    MCDropout,
    Model,
    Normal,
    fit,
    from_torch,
    to_torch,
)

pytestmark = pytest.mark.long
LAST = {"perceptron": "5.*"}  # the names of the last layer, where they are not fc.*
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(params=[torch.float64, torch.float32], ids=["double", "single"])
def precision(request):
    torch.set_default_dtype(request.param)
    with jax.enable_x64(request.param == torch.float64):
        yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64(True):
        yield
    torch.set_default_dtype(torch.float32)


def close(ours, theirs, tolerance, name=""):
    wanted = theirs.detach().numpy()
    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max(), err_msg=name)


def compare(module, x, tolerance):
    """Outputs, and gradients of a random projection of them, beside those of PyTorch in evaluation mode."""
    network = from_torch(module.eval(), x[:1])
    inputs = jnp.asarray(x.numpy())
    params = network.init(jax.random.key(0), inputs)
    expected = module(x)
    slopes = torch.randn_like(expected)
    module.zero_grad()
    (expected * slopes).sum().backward()

    def projected(params):
        outputs = network.apply(params, inputs)
        return jnp.sum(outputs * slopes.numpy()), outputs

    (_, outputs), gradient = jax.jit(jax.value_and_grad(projected, has_aux=True))(params)
    close(outputs, expected, tolerance)
    for name, parameter in module.named_parameters():
        close(gradient[name], parameter.grad, tolerance, name)


@pytest.mark.parametrize("name", torch_modules.NETWORKS)
def test_outputs_and_gradients_are_pytorchs(precision, name):
    module, x, _ = torch_modules.trained(name, 12)
    compare(module, x, TOLERANCE[precision])


class Scaled(nn.Module):
    """A function of x times a weight, so that its gradient is compared too."""

    def __init__(self, function, shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(0.5 + torch.rand(shape))

    def forward(self, x):
        return self.function(x * self.weight)


def both(*functions):
    return lambda x: torch.cat([function(x).flatten(1) for function in functions], 1)


FUNCTIONS = {
    "activations": (
        (6,),
        both(
            functional.relu6,
            functional.silu,
            functional.mish,
            functional.gelu,
            functional.elu,
            functional.selu,
            functional.celu,
            functional.softplus,
            functional.hardswish,
        ),
    ),
    "more activations": (
        (6,),
        both(
            functional.leaky_relu,
            functional.hardtanh,
            functional.logsigmoid,
            functional.glu,
            functional.softsign,
            torch.erf,
        ),
    ),
    "gelu by tanh": ((6,), lambda x: functional.gelu(x, approximate="tanh")),
    "softmax": (
        (4, 6),
        both(
            lambda x: functional.softmax(x, 1),
            lambda x: functional.log_softmax(x, -1),
            lambda x: functional.normalize(x, dim=2),
        ),
    ),
    "arithmetic": (
        (6,),
        both(
            lambda x: (x + 2 * x.abs()).sqrt() / (1 + x**2),
            lambda x: 2 - x.pow(3) + 2**x,
            lambda x: torch.add(x, x.sin(), alpha=3) - torch.exp(-x),
            lambda x: x.clamp(-0.5, 0.7) + x.clamp_min(0.1),
            lambda x: torch.lerp(x, x.cos(), 0.3),
            lambda x: torch.addcmul(x, x, x.tanh(), value=0.5),
            lambda x: torch.div(x * 5, 2, rounding_mode="floor") + x.remainder(0.7),
            lambda x: torch.maximum(x, x.sin()) * torch.rsqrt(1 + x * x).reciprocal(),
        ),
    ),
    "comparisons": (
        (6,),
        both(
            lambda x: torch.where(x > 0, x, -2 * x),
            lambda x: x.masked_fill((x < 0.5) & ~(x == 0), 3.0),
            lambda x: torch.where((x >= 0) | (x <= -1), x, 0.0),
        ),
    ),
    "reductions": (
        (3, 4),
        both(
            lambda x: x.sum(1),
            lambda x: x.mean((1, 2), keepdim=True),
            lambda x: x.var(2) + x.std(2, unbiased=False),
            lambda x: x.amax(1) + x.max(1).values + x.min(1)[0],
            lambda x: x.logsumexp((1, 2))[:, None],
            lambda x: x.cumsum(2),
            lambda x: x.prod(2),
            lambda x: x.norm(dim=2),
            lambda x: torch.var_mean(x, (1, 2))[0][:, None],
        ),
    ),
    "order": ((5,), both(lambda x: x.topk(2).values, lambda x: x.sort(descending=True)[0], lambda x: x.argsort(1) * x)),
    "shapes": (
        (2, 3, 4),
        both(
            lambda x: x.permute(0, 3, 1, 2).reshape(len(x), 4, 6),
            lambda x: x.transpose(1, -1).contiguous().view(x.shape[0], -1, 2),
            lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1, -1),
            lambda x: x.flatten(2).unflatten(2, (2, 6)),
            lambda x: torch.cat(x.chunk(3, 3), 1),
            lambda x: torch.stack(x.split([1, 2], 2)[1].unbind(3), 1),
            lambda x: x.repeat(1, 2, 1, 2),
            lambda x: x.repeat_interleave(2, 1).roll(1, 2).flip(3),
            lambda x: x.movedim(1, 3).swapaxes(1, 2),
            lambda x: functional.pad(x, (1, 2, 0, 1), value=2.0),
            lambda x: functional.pad(x, (1, 2, 1, 1), mode="reflect"),
            lambda x: x.tril() + x.triu(1),
            lambda x: x.unfold(3, 2, 1),
        ),
    ),
    "indexing": (
        (4, 5),
        both(
            lambda x: x[:, 1:, ::2],
            lambda x: x[:, -1],
            lambda x: x[:, torch.tensor([2, 0])],
            lambda x: x[..., None, 3],
            lambda x: x.gather(2, torch.zeros_like(x, dtype=torch.long)[:, :, :3] + 1),
            lambda x: x.index_select(1, torch.tensor([3, 3])),
            lambda x: x[torch.arange(len(x)), 2],
            lambda x: x.narrow(2, 1, 3),
        ),
    ),
    "writes": (
        (4, 5),
        both(
            lambda x: written(x, (slice(None), 0)),
            lambda x: written(x, (slice(None), slice(1, 3), 2)),
            lambda x: torch.zeros_like(x).scatter(2, x.argmax(2, keepdim=True), 2.0) * x,
            lambda x: x.clone().mul_(2).add_(x),
        ),
    ),
    "products": (
        (4, 4),
        both(
            lambda x: x @ x.mT,
            lambda x: torch.einsum("nij,nkj->nik", x, x),
            lambda x: torch.bmm(x, x) + torch.baddbmm(x, x, x, alpha=0.5),
            lambda x: torch.matmul(x, torch.eye(4)) + torch.addmm(x[:, 0], x[:, 1], torch.eye(4))[:, None],
        ),
    ),
    "creation": (
        (4,),
        both(
            lambda x: x * torch.arange(4) + torch.arange(1, 3, 0.5),
            lambda x: x + torch.ones(len(x), 4) + torch.full((4,), 0.5) + x.new_zeros(4) + torch.full_like(x, 2.0),
            lambda x: x * functional.one_hot(torch.tensor([1, 3]), 4).sum(0),
            lambda x: x.to(torch.float32).double() + torch.linspace(0, 1, 4),
        ),
    ),
    "pooling": (
        (3, 9, 8),
        both(
            lambda x: functional.max_pool2d(x, 3, 2, 1),
            lambda x: functional.max_pool2d(x, (2, 3), ceil_mode=True),
            lambda x: functional.max_pool2d(x, 2, 1, dilation=2),
            lambda x: functional.avg_pool2d(x, 3, 2, 1),
            lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            lambda x: functional.avg_pool2d(x, (3, 2), ceil_mode=True),
            lambda x: functional.adaptive_avg_pool2d(x, (4, 3)),
            lambda x: functional.adaptive_max_pool2d(x, (2, 5)),
            lambda x: functional.interpolate(x, scale_factor=2),
            lambda x: functional.interpolate(x, size=(5, 12), mode="bilinear"),
            lambda x: functional.interpolate(x, size=(5, 12), mode="bilinear", align_corners=True),
        ),
    ),
    "pooling of series": (
        (3, 9),
        both(lambda x: functional.max_pool1d(x, 2), lambda x: functional.avg_pool1d(x, 3, 1, 1)),
    ),
    "shuffling": ((8, 2, 3), lambda x: functional.pixel_shuffle(x, 2)),
    "attention": (
        (2, 4, 6),
        both(
            lambda x: functional.scaled_dot_product_attention(x, x, x),
            lambda x: functional.scaled_dot_product_attention(x, x, x.sin(), is_causal=True, scale=0.3),
            lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(4).bool()),
            lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(16.0).reshape(4, 4)),
            lambda x: functional.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True),
        ),
    ),
}


def written(x, place):
    x = x * 1
    x[place] = 3 * x[place]
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pytorchs(double, name):
    torch.manual_seed(1)
    shape, function = FUNCTIONS[name]
    compare(Scaled(function, shape), torch.randn(4, *shape), 1e-10)


MODULES = {
    "convolution, groups": ((4, 7, 8), lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2)),
    "convolution, depth": ((4, 7, 7), lambda: nn.Conv2d(4, 4, 3, padding="same", groups=4)),
    "convolution of series": ((4, 9), lambda: nn.Conv1d(4, 6, 3, 2, 1, 2, groups=2)),
    "convolution of volumes": ((2, 4, 5, 6), lambda: nn.Conv3d(2, 3, 2, 1, 1)),
    "transposed": ((4, 5, 6), lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
    "transposed, dilated": ((4, 5), lambda: nn.ConvTranspose1d(4, 6, 3, 2, 0, dilation=2)),
    "padding": ((2, 5, 5), lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
    "bilinear": ((4,), lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3))),
    "layer norm": ((3, 4), lambda: nn.LayerNorm((3, 4))),
    "rms norm": ((3, 4), lambda: nn.RMSNorm(4)),
    "instance norm": ((3, 4, 5), lambda: nn.InstanceNorm2d(3, affine=True)),
    "batch norm": ((3, 4), lambda: nn.BatchNorm1d(3).eval()),
    "gru": ((5, 3), lambda: Outputs(nn.GRU(3, 4, 2, batch_first=True, bidirectional=True))),
    "gru without biases": ((5, 3), lambda: Outputs(nn.GRU(3, 4, bias=False, batch_first=True))),
    "rnn": ((5, 3), lambda: Outputs(nn.RNN(3, 4, batch_first=True, nonlinearity="relu"))),
    "lstm": ((5, 3), lambda: Outputs(nn.LSTM(3, 4, batch_first=True))),
    "attention": ((5, 8), lambda: Attention()),
    "decoder": ((5, 8), lambda: Decoder()),
}


class Outputs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attention(nn.Module):
    """Once plain, with the weights asked for, and once fused; a part without gradients."""

    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, 0.1, batch_first=True)

    def forward(self, x):
        with torch.no_grad():
            shift = torch.arange(x.shape[1]).cos()[:, None]
        plain, weights = self.heads(x, x, x, need_weights=True)
        return plain + self.heads(x + shift, x, x, need_weights=False)[0] + weights.sum(2, keepdim=True)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x, x.flip(1), tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), tgt_is_causal=True)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_pytorchs(double, name):
    torch.manual_seed(1)
    shape, build = MODULES[name]
    compare(build(), torch.randn(4, *shape), 1e-10)


def test_dropout_is_pytorchs_in_distribution():
    """Mean and variance of outputs over masks, in layers and in fused attention; each with its Monte Carlo error."""
    module, x, _ = torch_modules.trained("transformer", 4)
    network, draws = from_torch(module, x), 4000
    rows = jnp.asarray(x[:2].numpy())
    params = network.init(jax.random.key(0), rows)
    keys = jax.random.split(jax.random.key(0), draws)
    ours = np.asarray(jax.jit(jax.vmap(lambda key: network.apply(params, rows, key)))(keys)).reshape(draws, -1)
    module.train()
    with torch.no_grad():
        theirs = module(x[:2].repeat(draws, 1)).numpy().reshape(draws, -1)
    for moment in (lambda values: values, lambda values: (values - values.mean(0)) ** 2):
        one, other = moment(ours), moment(theirs)
        error = np.sqrt((one.var(0) + other.var(0)) / draws)
        assert (np.abs(one.mean(0) - other.mean(0)) < 4.5 * error).all()


def test_a_module_that_drops_in_evaluation_mode_is_refused():
    layer = Scaled(lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), (4, 6))
    with pytest.raises(ValueError, match="other outputs than Scaled in evaluation mode"):
        from_torch(layer, torch.randn(2, 4, 6))


def methods(name):
    last = LAST.get(name, "fc.*")
    head = {last: Normal(0.0, 1.0), "*": Fixed()}
    short = {"num_steps": 3, "batch_size": 8}
    return {
        "map": (MAP(**short), None),
        "mc dropout": (MCDropout(**short), None),
        "ensemble": (DeepEnsemble(2, **short), None),  # of modules that each chain builds
        "swag": (SWAG(start=MAP(**short), num_steps=4, batch_size=8), None),
        "last-layer laplace": (Laplace(start=MAP(**short), weights="last_layer"), None),
        "sghmc": (SGHMC(num_burn_in=2, num_draws=2, thin=1, batch_size=8), None),
        "last-layer hmc": (HMC(num_burn_in=3, num_draws=3), head),
    }


@pytest.mark.parametrize("method", methods("perceptron"))
@pytest.mark.parametrize("name", torch_modules.NETWORKS)
def test_every_kind_of_method_runs(name, method):
    module, x, y = torch_modules.trained(name, 16, steps=2)
    build = torch_modules.NETWORKS[name][0]
    network = from_torch((lambda: build().eval()) if method == "ensemble" else module, x)
    settings, prior = methods(name)[method]
    classes = int(module(x).shape[-1])
    model = Model(network, Categorical(classes), prior or Normal(0.0, 1.0))
    posterior = fit(model, settings, (x.numpy(), y.numpy()), progress=False)
    probabilities = posterior.predict(x[:3].numpy()).mean
    assert probabilities.shape == (3, classes)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-4)
    if method == "last-layer hmc":
        first = next(iter(module.state_dict()))
        draws = np.asarray(posterior.weights()["network"][first])
        np.testing.assert_array_equal(draws[0], module.state_dict()[first].numpy())


def test_an_integrated_head_is_found():
    module = torch_modules.perceptron(3, 8, 1).eval()
    x = torch.randn(30, 3)
    model = Model(from_torch(module, x), Gaussian(0.1), Normal(0.0, 1.0))
    posterior = fit(model, HMC(num_burn_in=20, num_draws=20), (x.numpy(), x[:, 0].numpy()), progress=False)
    assert any("integrated out" in remark for remark in posterior.receipt.remarks)


def test_weights_go_back_to_pytorch():
    module, x, y = torch_modules.trained("perceptron", 16)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = Model(from_torch(torch_modules.perceptron, x), Categorical(2), Normal(0.0, 1.0))
    posterior = fit(model, DeepEnsemble(3, num_steps=5, learning_rate=0.1), (x.numpy(), y.numpy()), progress=False)
    states = to_torch(posterior, module)
    assert len(states) == 3
    outputs = np.asarray(posterior.predict(x.numpy()).outputs)
    for state, ours in zip(states, outputs, strict=True):
        other = torch_modules.perceptron().eval()
        other.load_state_dict(state)
        np.testing.assert_allclose(other(x).detach().numpy(), ours, rtol=1e-4, atol=1e-5)
    (mean,) = to_torch(posterior, module, "mean")
    torch.testing.assert_close(mean["0.weight"], sum(state["0.weight"] for state in states) / 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(ValueError, match="has no parameter"):
        to_torch(posterior, nn.Linear(3, 2))


def test_buffers_and_tied_weights_go_back_to_pytorch():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
            self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 1)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.last(torch.tanh(self.second(self.norm(self.first(x)))))

    module, x = Tied().eval(), torch.randn(10, 3)
    network = from_torch(module, x)
    assert "second.weight" not in network.init(jax.random.key(0), None)
    posterior = fit(Model(network, Gaussian(0.1)), MAP(num_steps=3), (x.numpy(), x[:, 0].numpy()), progress=False)
    (state,) = to_torch(posterior, module)
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert not torch.equal(state["first.weight"], module.first.weight)
    assert torch.equal(state["norm.running_var"], module.norm.running_var)
    other = Tied().eval()
    other.load_state_dict(state)
    np.testing.assert_allclose(other(x).detach().numpy()[:, 0], posterior.predict(x.numpy()).mean, rtol=1e-4, atol=1e-5)


def test_a_function_gives_each_chain_weights_of_its_own():
    network = from_torch(torch_modules.perceptron, torch.randn(2, 5))
    keys = jax.random.split(jax.random.key(0), 3)
    state = torch.get_rng_state()
    weights = jax.vmap(lambda key: network.init(key, None))(keys)["0.weight"]
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[1], network.init(keys[1], None)["0.weight"])
    assert np.abs(weights).max() <= 1 / np.sqrt(5)  # PyTorch's own initialisation


def test_arguments_may_be_several_or_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 1)

        def forward(self, zeta, alpha=None):
            return {"logits": self.last(zeta * 2 + alpha), "alpha": alpha}

    module, zeta, alpha = Two(), torch.randn(5, 3), torch.randn(5, 3)
    expected = module(zeta, alpha)["logits"].detach().numpy()
    for x in ((zeta, alpha), {"zeta": zeta, "alpha": alpha}, {"alpha": alpha, "zeta": zeta}):
        network = from_torch(module, x, output="logits")
        rows = jax.tree.map(lambda tensor: tensor.numpy(), x)
        np.testing.assert_allclose(network.apply(network.init(None, None), rows), expected, rtol=1e-5)


def test_frozen_parameters_are_constants():
    module = torch_modules.perceptron()
    module[0].requires_grad_(False)
    network = from_torch(module, torch.randn(2, 5))
    assert sorted(network.init(None, None)) == ["3.bias", "3.weight", "5.bias", "5.weight"]
    with pytest.raises(ValueError, match=r"requires_grad_\(True\)"):
        from_torch(module.requires_grad_(False), torch.randn(2, 5))


class Refused(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.last, self.function = nn.Linear(4, 1), function
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.function(self, self.last(x))


REFUSED = {
    r"holds for 3 rows of x alone.*x\.flatten\(1\)": lambda self, y: y.view(3, -1),
    "torch.export cannot write Refused.*torch.where": lambda self, y: y if y.sum() > 0 else -y,
    r"writes to count when it is called.*module\.eval": lambda self, y: y + self.count.add_(1),
    r"not known here: aten\.special_i1\.default.*operations=": lambda self, y: torch.special.i1(y),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_a_network_is_refused_with_the_remedy(message):
    with pytest.raises(ValueError, match=message):
        from_torch(Refused(REFUSED[message]), torch.randn(3, 4))


def test_batch_norm_in_training_mode_is_refused_and_its_mode_stays():
    module = torch_modules.ResNet18(nn.BatchNorm2d, 8)
    with pytest.raises(ValueError, match=r"module\.eval\(\) before from_torch"):
        from_torch(module, torch.randn(2, 3, 32, 32))
    assert all(part.training for part in module.modules())
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        from_torch(lambda: 3, torch.randn(2, 3))


def test_an_operation_can_be_added():
    module, x = Refused(lambda self, y: torch.special.i1(y)), torch.randn(3, 4)
    network = from_torch(module, x, operations={"aten.special_i1.default": jax.scipy.special.i1})
    close(network.apply(network.init(None, None), x.numpy()), module(x), 1e-5)


def regression(bias):
    """A trained network of two outputs, and its rows, in double precision."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 10, bias=bias), nn.Tanh(), nn.Linear(10, 2, bias=bias))
    x = torch.randn(60, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1) + 0.1 * torch.randn(60, 2)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return module, x, y


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what laplace-torch imports
@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_laplace_is_that_of_laplace_torch(double, weights):
    """The same matrices at the same weights; with biases, theirs are blocks of their own, ours are not."""
    laplace = pytest.importorskip("laplace")
    module, x, y = regression(bias=weights == "last_layer")
    matrix = {"last_layer": "full", "all": "kronecker"}[weights]
    theirs = laplace.Laplace(
        module,
        "regression",
        subset_of_weights=weights,
        hessian_structure={"full": "full", "kronecker": "kron"}[matrix],
        sigma_noise=0.2,
        prior_precision=1 / 0.7**2,
    )
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(x)))
    rows = torch.randn(20, 3)
    mean, covariance = theirs(rows)
    model = Model(from_torch(module, x), Gaussian(0.2, num_outputs=2), Normal(0.0, 0.7))
    start = model.network.init(None, None)
    method = Laplace(start=start, weights=weights, matrix=matrix, newton=False)
    posterior = fit(model, method, (x.numpy(), y.numpy()), progress=False)
    prediction = posterior.predict(rows.numpy())
    np.testing.assert_allclose(prediction.mean, mean.detach().numpy(), rtol=1e-6)
    variance = torch.diagonal(covariance, dim1=1, dim2=2).detach().numpy()
    np.testing.assert_allclose(prediction.epistemic, variance, rtol=0.01)
