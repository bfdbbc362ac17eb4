"""BibTeX of the methods and kernels that a study used, and of no others."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.report.build import Contents
from model.record.backends import described

# The kind of entry and its fields, for each key.
_ENTRIES: dict[str, tuple[str, dict[str, str]]] = {
    "ansel2024pytorch": ("inproceedings", {
        "author": "Ansel, Jason and Yang, Edward and He, Horace and others",
        "title": "{PyTorch} 2: Faster Machine Learning Through Dynamic {Python} Bytecode Transformation and "
        "Graph Compilation",
        "booktitle": "ASPLOS", "year": "2024", "doi": "10.1145/3620665.3640366"}),
    "chetlur2014cudnn": ("misc", {
        "author": "Chetlur, Sharan and Woolley, Cliff and Vandermersch, Philippe and Cohen, Jonathan and "
        "Tran, John and Catanzaro, Bryan and Shelhamer, Evan",
        "title": "{cuDNN}: Efficient Primitives for Deep Learning", "year": "2014",
        "note": "arXiv:1410.0759"}),
    "chowdhery2022palm": ("misc", {
        "author": "Chowdhery, Aakanksha and Narang, Sharan and Devlin, Jacob and others",
        "title": "{PaLM}: Scaling Language Modeling with Pathways", "year": "2022",
        "note": "arXiv:2204.02311, appendix B"}),
    "dao2022flashattention": ("inproceedings", {
        "author": "Dao, Tri and Fu, Daniel Y. and Ermon, Stefano and Rudra, Atri and R{\\'e}, Christopher",
        "title": "{FlashAttention}: Fast and Memory-Efficient Exact Attention with {IO}-Awareness",
        "booktitle": "NeurIPS", "year": "2022", "note": "arXiv:2205.14135"}),
    "dao2023flashattention2": ("inproceedings", {
        "author": "Dao, Tri", "title": "{FlashAttention-2}: Faster Attention with Better Parallelism and "
        "Work Partitioning", "booktitle": "ICLR", "year": "2024", "note": "arXiv:2307.08691"}),
    "dong2024flex": ("misc", {
        "author": "Dong, Juechu and Feng, Boyuan and Guessous, Driss and Liang, Yanbo and He, Horace",
        "title": "{Flex Attention}: A Programming Model for Generating Optimized Attention Kernels",
        "year": "2024", "note": "arXiv:2412.05496"}),
    "hettmansperger1986": ("article", {
        "author": "Hettmansperger, Thomas P. and Sheather, Simon J.",
        "title": "Confidence Intervals Based on Interpolated Order Statistics",
        "journal": "Statistics \\& Probability Letters", "volume": "4", "pages": "75--79", "year": "1986"}),
    "hoefler2015": ("inproceedings", {
        "author": "Hoefler, Torsten and Belli, Roberto",
        "title": "Scientific Benchmarking of Parallel Computing Systems: Twelve Ways to Tell the Masses when "
        "Reporting Performance Results",
        "booktitle": "SC", "year": "2015", "doi": "10.1145/2807591.2807644"}),
    "holm1979": ("article", {
        "author": "Holm, Sture", "title": "A Simple Sequentially Rejective Multiple Test Procedure",
        "journal": "Scandinavian Journal of Statistics", "volume": "6", "pages": "65--70", "year": "1979"}),
    "lefaudeux2022xformers": ("misc", {
        "author": "Lefaudeux, Benjamin and Massa, Francisco and Liskovich, Diana and others",
        "title": "{xFormers}: A Modular and Hackable Transformer Modelling Library", "year": "2022",
        "note": "https://github.com/facebookresearch/xformers"}),
    "loshchilov2019adamw": ("inproceedings", {
        "author": "Loshchilov, Ilya and Hutter, Frank", "title": "Decoupled Weight Decay Regularization",
        "booktitle": "ICLR", "year": "2019", "note": "arXiv:1711.05101"}),
    "piepho2004": ("article", {
        "author": "Piepho, Hans-Peter",
        "title": "An Algorithm for a Letter-Based Representation of All-Pairwise Comparisons",
        "journal": "Journal of Computational and Graphical Statistics", "volume": "13", "pages": "456--466",
        "year": "2004"}),
    "rabe2021memory": ("misc", {
        "author": "Rabe, Markus N. and Staats, Charles",
        "title": "Self-attention Does Not Need {$O(n^2)$} Memory", "year": "2021",
        "note": "arXiv:2112.05682"}),
    "schuirmann1987": ("article", {
        "author": "Schuirmann, Donald J.",
        "title": "A Comparison of the Two One-Sided Tests Procedure and the Power Approach for Assessing the "
        "Equivalence of Average Bioavailability",
        "journal": "Journal of Pharmacokinetics and Biopharmaceutics", "volume": "15", "pages": "657--680",
        "year": "1987", "doi": "10.1007/BF01068419"}),
    "shah2024flashattention3": ("inproceedings", {
        "author": "Shah, Jay and Bikshandi, Ganesh and Zhang, Ying and Thakkar, Vijay and Ramani, Pradeep "
        "and Dao, Tri",
        "title": "{FlashAttention-3}: Fast and Accurate Attention with Asynchrony and Low-precision",
        "booktitle": "NeurIPS", "year": "2024", "note": "arXiv:2407.08608"}),
    "student1908": ("article", {
        "author": "Student", "title": "The Probable Error of a Mean", "journal": "Biometrika", "volume": "6",
        "pages": "1--25", "year": "1908"}),
    "tillet2019triton": ("inproceedings", {
        "author": "Tillet, Philippe and Kung, H. T. and Cox, David",
        "title": "{Triton}: An Intermediate Language and Compiler for Tiled Neural Network Computations",
        "booktitle": "MAPL", "year": "2019", "doi": "10.1145/3315508.3329973"}),
    "touvron2023llama": ("misc", {
        "author": "Touvron, Hugo and Lavril, Thibaut and Izacard, Gautier and others",
        "title": "{LLaMA}: Open and Efficient Foundation Language Models", "year": "2023",
        "note": "arXiv:2302.13971"}),
    "zadouri2026flashattention4": ("misc", {
        "author": "Zadouri, Ted and Hoehnerbach, Markus and Shah, Jay and Liu, Timmy and Thakkar, Vijay and "
        "Dao, Tri",
        "title": "{FlashAttention-4}: Algorithm and Kernel Pipelining Co-Design for Asymmetric Hardware "
        "Scaling", "year": "2026", "note": "arXiv:2603.05451"}),
}  # fmt: skip


def used(contents: Contents) -> list[str]:
    """Keys of what this study used, sorted."""
    return sorted({*_kernels(contents), *_methods(contents)})


def of_backend(attention: str) -> tuple[str, ...]:
    """Keys for a backend's kernel; empty if another package adds the backend."""
    backend = described(attention)
    return backend.references if backend else ()


def bibtex(keys: list[str]) -> str:
    """The entries."""
    entries = []
    for key in keys:
        kind, fields = _ENTRIES[key]
        lines = "".join(f",\n  {name} = {{{value}}}" for name, value in fields.items())
        entries.append(f"@{kind}{{{key}{lines}\n}}\n")
    return "\n".join(entries)


def _kernels(contents: Contents) -> Iterator[str]:
    writeup = contents.task.writeup
    for attention in writeup.backends(contents.facts):
        yield from of_backend(attention)
    if any(run["device"] and not run["imported"] for run in contents.facts.runs):
        yield from writeup.references


def _methods(contents: Contents) -> Iterator[str]:
    """The methods that the words of the intervals and verdicts name."""
    groups, comparison = contents.facts.groups, contents.comparison
    shown = [est for group in groups for est in (group.tokens_per_second, group.mfu, group.final_loss) if est]
    ratios = [
        method for pair in comparison.rates.compared for method in (pair.ratio.method, pair.verdict.method)
    ]
    methods = [*(est.method for est in shown), *ratios, *(pair.verdict.method for pair in comparison.losses)]
    words = " ".join(methods)
    if any(group.tokens_per_second for group in groups):
        yield "hoefler2015"
    if any(group.mfu for group in groups):
        yield "chowdhery2022palm"
    if " t interval" in words:
        yield "student1908"
    if "order statistics" in words:
        yield "hettmansperger1986"
    if "two one-sided tests" in words:
        yield "schuirmann1987"
    if any(ranking.tiers for ranking in comparison.rates.rankings):
        yield from ("holm1979", "piepho2004")
