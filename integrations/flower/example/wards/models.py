"""Three architectures whose features have one width, so that means by class fit together."""

from torch import nn

from consilience import SplitModel
from consilience.models import build_model

WIDTH, SHAPE, CLASSES = 32, (1, 8, 8), 10


def lenet5() -> SplitModel:
    """The built-in LeNet5 with 32 features instead of 84."""
    return build_model("lenet5", SHAPE, CLASSES, width=WIDTH)


def mlp() -> SplitModel:
    """The built-in perceptron."""
    return build_model("mlp", SHAPE, CLASSES, width=WIDTH)


def patches() -> SplitModel:
    """One convolution over 2 x 2 patches: (n, 1, 8, 8) -> (n, 24, 4, 4) -> (n, 32)."""
    features = nn.Sequential(
        nn.Conv2d(1, 24, kernel_size=2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 4 * 4, WIDTH), nn.Tanh()
    )
    return SplitModel(features, nn.Linear(WIDTH, CLASSES), bound=1.0)


MODELS = (lenet5, mlp, patches)
