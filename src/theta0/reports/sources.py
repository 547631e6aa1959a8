"""The sources that findings and documentation name, each with its link."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DOI, _ARXIV = "https://doi.org/", "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Source:
    """A publication.

    Attributes:
        key: how results and documentation name it: a bib key, or authors and year.
        authors: their names.
        title: its title.
        where: journal, conference or kind, and year.
        link: by DOI or arXiv number, else where the publisher has it; the empty string where there is none.
    """

    key: str
    authors: str
    title: str
    where: str
    link: str


SOURCES = (
    Source(
        "furusho2020thesis",
        "Yasutaka Furusho",
        "Analysis of Regularization and Optimization for Deep Learning",
        "doctoral dissertation NAIST-IS-DD1761016, Nara Institute of Science and Technology, 2020",
        "",
    ),
    Source(
        "kutsuna2019lcw",
        "Takuro Kutsuna",
        "Linearly Constrained Weights: Reducing Activation Shift for Faster Training of Neural Networks",
        "ECML PKDD 2019",
        _DOI + "10.1007/978-3-030-46147-8_16",
    ),
    Source(
        "lee2023mmd",
        "Cheolhyoung Lee, Kyunghyun Cho",
        "Unsupervised Learning of Initialization in Deep Neural Networks via Maximum Mean Discrepancy",
        "preprint, 2023",
        _ARXIV + "2302.04369",
    ),
    Source(
        "yang2022nio",
        "Yibo Yang, Hong Wang, Haobo Yuan, Zhouchen Lin",
        "Towards Theoretically Inspired Neural Initialization Optimization",
        "NeurIPS 2022",
        _ARXIV + "2210.05956",
    ),
    Source(
        "dauphin2019metainit",
        "Yann N. Dauphin, Samuel Schoenholz",
        "MetaInit: Initializing learning by learning to initialize",
        "NeurIPS 2019",
        "",
    ),
    Source(
        "zhu2021gradinit",
        "Chen Zhu, Renkun Ni, Zheng Xu, Kezhi Kong, W. Ronny Huang, Tom Goldstein",
        "GradInit: Learning to Initialize Neural Networks for Stable and Efficient Training",
        "NeurIPS 2021",
        _ARXIV + "2102.08098",
    ),
    Source(
        "he2016resnet",
        "Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun",
        "Deep Residual Learning for Image Recognition",
        "CVPR 2016",
        _ARXIV + "1512.03385",
    ),
    Source(
        "huang2017densenet",
        "Gao Huang, Zhuang Liu, Laurens van der Maaten, Kilian Q. Weinberger",
        "Densely Connected Convolutional Networks",
        "CVPR 2017",
        _ARXIV + "1608.06993",
    ),
    Source(
        "liu2021swin",
        "Ze Liu, Yutong Lin, Yue Cao, Han Hu, Yixuan Wei, Zheng Zhang, Stephen Lin, Baining Guo",
        "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
        "ICCV 2021",
        _ARXIV + "2103.14030",
    ),
    Source(
        "zagoruyko2016wrn",
        "Sergey Zagoruyko, Nikos Komodakis",
        "Wide Residual Networks",
        "BMVC 2016",
        _ARXIV + "1605.07146",
    ),
    Source(
        "Arora, Li & Lyu (2019)",
        "Sanjeev Arora, Zhiyuan Li, Kaifeng Lyu",
        "Theoretical Analysis of Auto Rate-Tuning by Batch Normalization",
        "ICLR 2019",
        _ARXIV + "1812.03981",
    ),
    Source(
        "Chan, Golub and LeVeque (1979)",
        "Tony F. Chan, Gene H. Golub, Randall J. LeVeque",
        "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
        "Stanford University, technical report STAN-CS-79-773, 1979",
        "",
    ),
    Source(
        "Cohen et al. (2021)",
        "Jeremy M. Cohen, Simran Kaur, Yuanzhi Li, J. Zico Kolter, Ameet Talwalkar",
        "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability",
        "ICLR 2021",
        _ARXIV + "2103.00065",
    ),
    Source(
        "Cohen et al. (2022)",
        "Jeremy M. Cohen, Behrooz Ghorbani, Shankar Krishnan, and others",
        "Adaptive Gradient Methods at the Edge of Stability",
        "preprint, 2022",
        _ARXIV + "2207.14484",
    ),
    Source(
        "De & Smith (2020)",
        "Soham De, Samuel L. Smith",
        "Batch Normalization Biases Residual Blocks Towards the Identity Function in Deep Networks",
        "NeurIPS 2020",
        _ARXIV + "2002.10444",
    ),
    Source(
        "Glorot & Bengio (2010)",
        "Xavier Glorot, Yoshua Bengio",
        "Understanding the difficulty of training deep feedforward neural networks",
        "AISTATS 2010",
        "https://proceedings.mlr.press/v9/glorot10a.html",
    ),
    Source(
        "Goodfellow et al. (2016)",
        "Ian Goodfellow, Yoshua Bengio, Aaron Courville",
        "Deep Learning",
        "MIT Press, 2016",
        "https://www.deeplearningbook.org",
    ),
    Source(
        "Gülçehre and Bengio (2016)",
        "Çağlar Gülçehre, Yoshua Bengio",
        "Knowledge Matters: Importance of Prior Information for Optimization",
        "Journal of Machine Learning Research 17, 2016",
        _ARXIV + "1301.4083",
    ),
    Source(
        "Hanin & Rolnick (2018)",
        "Boris Hanin, David Rolnick",
        "How to Start Training: The Effect of Initialization and Architecture",
        "NeurIPS 2018",
        _ARXIV + "1803.01719",
    ),
    Source(
        "He et al. (2015)",
        "Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun",
        "Delving Deep into Rectifiers: Surpassing Human-Level Performance on ImageNet Classification",
        "ICCV 2015",
        _ARXIV + "1502.01852",
    ),
    Source(
        "Huang et al. (2017)",
        "Lei Huang, Xianglong Liu, Yang Liu, Bo Lang, Dacheng Tao",
        "Centered Weight Normalization in Accelerating Training of Deep Neural Networks",
        "ICCV 2017",
        "",
    ),
    Source(
        "Ioffe & Szegedy (2015)",
        "Sergey Ioffe, Christian Szegedy",
        "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift",
        "ICML 2015",
        _ARXIV + "1502.03167",
    ),
    Source(
        "Jamieson & Talwalkar (2016)",
        "Kevin Jamieson, Ameet Talwalkar",
        "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
        "AISTATS 2016",
        _ARXIV + "1502.07943",
    ),
    Source(
        "Kingma & Ba (2015)",
        "Diederik P. Kingma, Jimmy Ba",
        "Adam: A Method for Stochastic Optimization",
        "ICLR 2015",
        _ARXIV + "1412.6980",
    ),
    Source(
        "Kuczyński and Woźniakowski (1992)",
        "J. Kuczyński, H. Woźniakowski",
        "Estimating the Largest Eigenvalue by the Power and Lanczos Algorithms with a Random Start",
        "SIAM Journal on Matrix Analysis and Applications 13(4), 1992",
        _DOI + "10.1137/0613066",
    ),
    Source(
        "LeCun et al. (1998)",
        "Yann LeCun, Léon Bottou, Genevieve B. Orr, Klaus-Robert Müller",
        "Efficient BackProp",
        "Neural Networks: Tricks of the Trade, 1998",
        _DOI + "10.1007/3-540-49430-8_2",
    ),
    Source(
        "Lu et al. (2020)",
        "Lu Lu, Yeonjong Shin, Yanhui Su, George Em Karniadakis",
        "Dying ReLU and Initialization: Theory and Numerical Examples",
        "Communications in Computational Physics, 2020",
        _ARXIV + "1903.06733",
    ),
    Source(
        "Micikevicius et al. (2018)",
        "Paulius Micikevicius, Sharan Narang, Jonah Alben, and others",
        "Mixed Precision Training",
        "ICLR 2018",
        _ARXIV + "1710.03740",
    ),
    Source(
        "Mishkin & Matas (2016)",
        "Dmytro Mishkin, Jiri Matas",
        "All you need is a good init",
        "ICLR 2016",
        _ARXIV + "1511.06422",
    ),
    Source(
        "Rahaman et al. (2019)",
        "Nasim Rahaman, Aristide Baratin, Devansh Arpit, Felix Draxler, Min Lin, Fred Hamprecht, Yoshua Bengio, "
        "Aaron Courville",
        "On the Spectral Bias of Neural Networks",
        "ICML 2019",
        _ARXIV + "1806.08734",
    ),
    Source(
        "Pascanu et al. (2013)",
        "Razvan Pascanu, Tomas Mikolov, Yoshua Bengio",
        "On the difficulty of training Recurrent Neural Networks",
        "ICML 2013",
        _ARXIV + "1211.5063",
    ),
    Source(
        "Salimans & Kingma (2016)",
        "Tim Salimans, Diederik P. Kingma",
        "Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep Neural Networks",
        "NeurIPS 2016",
        _ARXIV + "1602.07868",
    ),
    Source(
        "Saxe et al. (2014)",
        "Andrew M. Saxe, James L. McClelland, Surya Ganguli",
        "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks",
        "ICLR 2014",
        _ARXIV + "1312.6120",
    ),
    Source(
        "Székely, Rizzo & Bakirov (2007)",
        "Gábor J. Székely, Maria L. Rizzo, Nail K. Bakirov",
        "Measuring and testing dependence by correlation of distances",
        "The Annals of Statistics 35(6), 2007",
        _DOI + "10.1214/009053607000000505",
    ),
    Source(
        "Tallec & Ollivier (2018)",
        "Corentin Tallec, Yann Ollivier",
        "Can recurrent neural networks warp time?",
        "ICLR 2018",
        _ARXIV + "1804.11188",
    ),
    Source(
        "Touvron et al. (2021)",
        "Hugo Touvron, Matthieu Cord, Alexandre Sablayrolles, Gabriel Synnaeve, Hervé Jégou",
        "Going deeper with Image Transformers",
        "ICCV 2021",
        _ARXIV + "2103.17239",
    ),
    Source(
        "Wu & He (2018)",
        "Yuxin Wu, Kaiming He",
        "Group Normalization",
        "ECCV 2018",
        _ARXIV + "1803.08494",
    ),
    Source(
        "Zhang et al. (2019)",
        "Hongyi Zhang, Yann N. Dauphin, Tengyu Ma",
        "Fixup Initialization: Residual Learning Without Normalization",
        "ICLR 2019",
        _ARXIV + "1901.09321",
    ),
)


def named_in(text: str) -> Iterator[tuple[str, Source | None]]:
    """A text in pieces, in order: what names a source, with that source, and what lies between.

    Yields:
        The piece and the source that it names, or None.

    Example:
        >>> [(piece, source and source.link) for piece, source in named_in("lee2023mmd, section 3.2")]
        [('lee2023mmd', 'https://arxiv.org/abs/2302.04369'), (', section 3.2', None)]
    """
    end = 0
    for found in _MENTIONS.finditer(text):
        if found.start() > end:
            yield text[end : found.start()], None
        yield found[0], SOURCES[(found.lastindex or 1) - 1]
        end = found.end()
    if end < len(text):
        yield text[end:], None


def _pattern(key: str) -> str:
    """What names a source: its key, and with `Lu et al. (2020)` also `Lu et al., 2020`."""
    names, _, year = key.rstrip(")").partition(" (")
    return rf"({re.escape(names)}(?: \({year}\)|,? {year}))" if year else f"({key})"


_MENTIONS = re.compile("|".join(_pattern(source.key) for source in SOURCES))
