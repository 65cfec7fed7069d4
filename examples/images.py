"""Images: an ensemble of small convolutional networks on handwritten digits, and what it makes of images that are none.

python examples/images.py [FOLDER]     writes images.png into the folder
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from posterity import MAP, Categorical, DeepEnsemble, Model, Normal, evaluate, fit, lenet

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).repeat(2, axis=1).repeat(2, axis=2)  # LeNet takes 12 x 12 pixels and more
images = (images / 16).astype(np.float32)  # [N, height, width, channels], within 0 and 1
x, x_test, y, y_test = train_test_split(images, labels, test_size=0.3, random_state=0, stratify=labels)

model = Model(lenet(filters=(8, 16), hidden=(32,)), Categorical(10), Normal(0.0, 0.3))
settings = {"num_steps": 300, "learning_rate": 3e-3, "batch_size": 64}
methods = {"one network": MAP(**settings), "four networks": DeepEnsemble(4, **settings)}
posteriors = {name: fit(model, method, (x, y), holdout=0.15) for name, method in methods.items()}

print("                accuracy  log score   (on test images; the log score is in nats, smaller is better)")
for name, posterior in posteriors.items():
    scores = evaluate(posterior.predict(x_test), y_test)
    print(f"{name:>14}  {scores['accuracy'].value:8.3f}  {scores['nll'].value:9.3f}")

# Images of the same size and brightness that are not digits: the upper half of a digit above the lower half of another,
# and the columns and rows of digits in random orders.
rng = np.random.default_rng(0)
halves = np.concatenate([x_test[:, :8], np.roll(x_test, 1, axis=0)[:, 8:]], axis=1)
shuffled = x_test[:, rng.permutation(16)][:, :, rng.permutation(16)]
groups = {"digits": x_test, "two halves": halves, "shuffled": shuffled}

# Epistemic uncertainty of classes is the mutual information of label and weights: members that disagree. `ood` is a
# p-value against the held-out digits, so that among digits one in twenty is below 0.05.
print("\n                sure of a class   epistemic   p-value below 0.05   (four networks; means)")
predictions = {name: posteriors["four networks"].predict(group) for name, group in groups.items()}
for name, prediction in predictions.items():
    sure = np.mean(prediction.mean.max(-1) > 0.95)
    print(f"{name:>14}  {sure:15.0%}   {prediction.epistemic.mean():9.3f}   {np.mean(prediction.ood < 0.05):18.0%}")

figure = Figure(figsize=(9, 4.2), layout="constrained")
for row, (name, group) in enumerate(groups.items()):
    prediction = predictions[name]
    order = np.argsort(prediction.epistemic)
    for column, i in enumerate(order[np.linspace(0, len(order) - 1, 9).astype(int)]):
        axes = figure.add_subplot(3, 9, 9 * row + column + 1)
        axes.imshow(group[i, ..., 0], cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"{prediction.mean[i].argmax()}, {prediction.epistemic[i]:.2f}", fontsize=9)
        axes.set(xticks=[], yticks=[], ylabel=name if column == 0 else "")
figure.suptitle(
    "The most probable class and its epistemic uncertainty in nats, which grows from left to right", fontsize=10
)
figure.savefig(folder / "images.png", dpi=150)
print(f"\nThe picture is {folder / 'images.png'}")
