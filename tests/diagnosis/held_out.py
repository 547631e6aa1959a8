"""The held-out starts: ill ones of many kinds, and healthy ones that look like them."""

# ruff: noqa: E501 (a table: one start a line)

import torch
from held_out_ill import (
    Block,
    Net,
    Start,
    changed,
    channel_gate,
    conv_net,
    cosine,
    counts,
    deep_conv1d,
    filled,
    first_token,
    frozen_norms,
    halves,
    images,
    last_relu,
    masks,
    mean_square,
    mlp,
    poisson,
    recurrent,
    regression,
    residual_conv,
    small_batches,
    tied_lm,
    tokens,
    transformer,
    vectors,
    waves,
    zero_adapter,
)  # fmt: skip
from torch import nn
from torch.nn import functional as F

ILL = (
    Start("deep plain conv, default start", ("vanishing-activations", "constant-output"), lambda: deep_conv1d(False), waves()),
    Start("tied language model, N(0,1)", ("initial-loss",), tied_lm, tokens()),
    Start("rectified gate at zero", ("zero-gradient",), channel_gate, waves()),
    Start("adapter with two zero factors", ("zero-gradient",), zero_adapter, vectors()),
    Start("one constant everywhere, conv", ("identical-units",), lambda: filled(conv_net(), lambda p: p.fill_(0.02), True), images()),
    Start("ones, tanh", ("identical-units", "saturated-units"), lambda: filled(mlp(12, 20, 20, 5, phi=nn.Tanh), lambda p: p.fill_(0.1)), vectors()),
    Start("zeros everywhere", ("zero-gradient", "identical-units"), lambda: filled(mlp(12, 20, 20, 5, phi=nn.Tanh), lambda p: p.zero_(), True), vectors()),
    Start("sigmoid before cross-entropy", ("squashed-output",), lambda: mlp(12, 40, 20, last=nn.Sigmoid), vectors(classes=20), rate=1e-2),
    Start("softmax before cross-entropy, functional", ("squashed-output",), lambda: Net(lambda s, x: F.softmax(s.f(x), 1), f=conv_net()), images()),
    Start("sigmoid before logits loss", ("squashed-output",), lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid()), masks, nn.BCEWithLogitsLoss()),
    Start("tanh output, targets to 50", ("squashed-output",), lambda: mlp(12, 32, 1, last=nn.Tanh), regression(scale=25, shift=25), "mse"),
    Start("sigmoid output, centred targets", ("squashed-output",), lambda: mlp(12, 32, 1, last=nn.Sigmoid), regression(scale=2), mean_square),
    Start("raw pixels into tanh", ("input-scale", "saturated-units"), lambda: nn.Sequential(nn.Flatten(), mlp(144, 64, 32, 3, phi=nn.Tanh)), images(scale=255)),
    Start("one feature is a time stamp", ("input-scale",), lambda: mlp(12, 32, 32, 5), vectors(scale=[1.0] * 11 + [1.7e9])),
    Start("weights from rand()", ("activation-shift", "initial-loss", "exploding-activations"), lambda: filled(mlp(12, 64, 64, 64, 64, 5), lambda p: p.uniform_()), vectors()),
    Start("transformer, std 1", ("exploding-activations", "initial-loss"), lambda: filled(transformer(), lambda p: p.normal_()), tokens()),
    Start("NaN in a kernel", ("non-finite",), lambda: changed(conv_net(), lambda m: m[2].bias[:1].fill_(torch.nan)), images()),
    Start("memory as it was", ("non-finite",), lambda: changed(mlp(12, 20, 5), lambda m: m[0].weight[:2].fill_(3e33)), vectors()),
    Start("tanh, std 0.01", ("vanishing-activations", "constant-output"), lambda: filled(mlp(12, *[40] * 8, 5, phi=nn.Tanh), lambda p: p.normal_(std=0.01)), vectors()),
    Start("uniform ±0.03, rectified", ("vanishing-activations", "constant-output"), lambda: filled(changed(mlp(12, *[64] * 7, 5), lambda m: [p.zero_() for n, p in m.named_parameters() if "bias" in n]), lambda p: p.uniform_(-0.03, 0.03)), vectors(), rate=1e-2, optimizer="momentum"),
    Start("sigmoid convolutions", ("vanishing-gradients", "activation-shift"), lambda: deep_conv1d(False, nn.Sigmoid, 7), waves(), optimizer="sgd", rate=0.1),
    Start("residual convolutions, He", ("exploding-activations", "initial-loss", "exploding-gradients"), residual_conv, waves(), rate=1e-3),
    Start("cosine classifier without scale", ("squashed-output",), lambda: cosine(1.0), vectors(classes=30)),
    Start("(N, 1) against (N,)", ("broadcast-loss",), lambda: mlp(12, 24, 1), regression(flat=True), mean_square),
    Start("(N,) against (N, 1)", ("broadcast-loss",), lambda: Net(lambda s, x: s.f(x)[:, 0], f=mlp(12, 24, 1)), regression(), nn.L1Loss()),
    Start("frozen batch normalisation", ("frozen-batch-norm", "vanishing-activations"), frozen_norms, images()),
    Start("biases far below zero", ("dead-units",), lambda: changed(mlp(12, 40, 40, 5), lambda m: m[2].bias.fill_(-6)), vectors()),
    Start("dead last rectifier", ("dead-units", "squashed-output", "constant-output"), last_relu, regression(), "mse"),
    Start("rate of ten", ("learning-rate-too-high",), lambda: mlp(12, 40, 40, 5), vectors(), optimizer="momentum", rate=10.0),
    Start("transformer at Adam 0.3", ("learning-rate-too-high",), transformer, tokens(), rate=0.3),
    Start("depthwise, fan out", ("vanishing-activations", "constant-output"), lambda: deep_conv1d(True, nn.ReLU), waves()),
    Start("tanh RNN over 60 steps", ("vanishing-gradients",), lambda: recurrent(nn.RNN, 3, 32, 3), first_token()),
    Start("GRU over 100 steps", ("vanishing-gradients",), lambda: recurrent(nn.GRU, 3, 32, 3), first_token(length=100)),
    Start("wild recurrence", ("exploding-activations", "non-finite"), lambda: changed(recurrent(nn.RNN, 3, 64, 3, nonlinearity="relu"), lambda m: m.rnn.weight_hh_l0.normal_(std=0.8)), first_token(length=30)),
    Start("exponential of raw counts", ("input-scale", "non-finite"), lambda: mlp(6, 32, 1), counts, poisson),
    Start("overflow in half", ("non-finite", "exploding-activations"), lambda: filled(mlp(12, *[40] * 6, 5), lambda p: p.normal_(std=1.5)).half(), halves(vectors())),
    Start("batches of two under BN", ("small-batch",), lambda: nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5)), small_batches),
)  # fmt: skip


def calibrated():
    """Batch normalisation frozen after its statistics were taken: fine-tuning as many do it."""

    # ruff: noqa: E501 (a table: one start a line)
    net = frozen_norms()
    net.train()
    with torch.no_grad():
        for _ in range(60):
            net(images()()[0][0])
    return net.eval()


class ReZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(12, 32), nn.Linear(32, 5)
        self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(6))
        self.scales = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        x = self.stem(x)
        for scale, block in zip(self.scales, self.blocks, strict=True):
            x = x + scale * block(x)
        return self.head(x)


def excited():
    return Net(
        lambda s, x: s.head((h * torch.sigmoid(s.up(F.relu(s.down(h.mean(2)))))[..., None]).mean(2)) if (h := F.relu(s.conv(x))) is not None else None,
        conv=nn.Conv1d(2, 16, 5), down=nn.Linear(16, 4), up=nn.Linear(4, 16), head=nn.Linear(16, 4),
    )  # fmt: skip


def positive():
    return [(x, y.abs() + 0.2) for x, y in regression()()]


def unit():
    return [(x, x.flatten(1)) for x, _ in images()()]


def sentences():
    return [(t, t[:, 0] % 5) for t, _ in tokens()()]


HEALTHY = (
    Start("log-softmax before cross-entropy", (), lambda: mlp(12, 40, 5, last=lambda: nn.LogSoftmax(1)), vectors()),
    Start("log-softmax and nll", (), lambda: mlp(12, 40, 5, last=lambda: nn.LogSoftmax(1)), vectors(), F.nll_loss),
    Start("sigmoid and plain bce", (), lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid()), masks, F.binary_cross_entropy),
    Start("tanh output within its range", (), lambda: mlp(12, 32, 1, last=nn.Tanh), regression(scale=0.8), "mse"),
    Start("softplus output, positive targets", (), lambda: mlp(12, 32, 1, last=nn.Softplus), positive, "mse"),
    Start("rectified output, positive targets", (), lambda: mlp(12, 32, 16, 1, last=nn.Softplus), positive, mean_square),
    Start("autoencoder of [0, 1]", (), lambda: nn.Sequential(nn.Flatten(), mlp(144, 32, 144, last=nn.Sigmoid)), unit, "mse"),
    Start("calibrated frozen norms", (), calibrated, images()),
    Start("zero branches", (), ReZero, vectors()),
    Start("cosine classifier with scale", (), lambda: cosine(16.0), vectors(classes=30), rate=1e-3),
    Start("LSTM over 12 steps", (), lambda: recurrent(nn.LSTM, 3, 32, 3), first_token(length=12)),
    Start("LSTM, mean over steps", (), lambda: Net(lambda s, x: s.head(s.rnn(x)[0].mean(1)), rnn=nn.LSTM(2, 24, batch_first=True), head=nn.Linear(24, 4)), lambda: [(x.transpose(1, 2), y) for x, y in waves()()]),
    Start("GRU, every step is judged", (), lambda: Net(lambda s, t: s.head(s.rnn(s.embed(t))[0]).flatten(0, 1), embed=nn.Embedding(60, 24), rnn=nn.GRU(24, 24, batch_first=True), head=nn.Linear(24, 60)), tokens(length=50)),
    Start("excitation gate", (), excited, waves()),
    Start("images in [0, 1]", (), conv_net, images()),
    Start("raw pixels before batch normalisation", (), lambda: nn.Sequential(nn.BatchNorm2d(1), conv_net()), images(scale=255)),
    Start("transformer", (), transformer, tokens()),
    Start("transformer classifier", (), lambda: Net(lambda s, t: s.head(s.norm(s.blocks(s.embed(t)).mean(1))), embed=nn.Embedding(60, 32), blocks=nn.Sequential(*(Block(32) for _ in range(4))), norm=nn.LayerNorm(32), head=nn.Linear(32, 5)), sentences),
    Start("zero head", (), lambda: changed(mlp(12, 32, 5), lambda m: [p.zero_() for p in m[2].parameters()]), vectors()),
    Start("identity layers", (), lambda: changed(mlp(12, 12, 12, 5), lambda m: [m[i].weight.copy_(torch.eye(12)) for i in (0, 2)]), vectors()),
    Start("separate outputs (N, 1)", (), lambda: mlp(12, 24, 1), regression(scale=3, shift=1), mean_square),
    Start("logistic regression", (), lambda: nn.Linear(12, 1), lambda: [(x, (y > 0).float()) for x, y in regression()()], "bce"),
)  # fmt: skip
