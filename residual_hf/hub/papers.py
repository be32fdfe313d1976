# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""BibTeX of the papers behind the modes and the figures of a card."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One entry of a bibliography; `venue`, `arxiv` and `url` only where there is one."""

    title: str
    authors: str
    year: int
    venue: str | None = None
    arxiv: str | None = None
    url: str | None = None

    def bibtex(self, key: str) -> str:
        fields = {
            "title": f"{{{self.title}}}",
            "author": self.authors,
            "booktitle": self.venue,
            "year": str(self.year),
            "eprint": self.arxiv,
            "archivePrefix": "arXiv" if self.arxiv else None,
            "url": self.url,
        }
        kind = "inproceedings" if self.venue else "misc"
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value is not None]
        return "\n".join([f"@{kind}{{{key},", *lines, "}"])


PAPERS = {
    "vaswani2017attention": Paper(
        "Attention Is All You Need",
        "Ashish Vaswani and Noam Shazeer and Niki Parmar and Jakob Uszkoreit and Llion Jones and Aidan N. Gomez and "
        "Lukasz Kaiser and Illia Polosukhin",
        2017,
        "Advances in Neural Information Processing Systems 30",
        "1706.03762",
    ),
    "xiong2020layer": Paper(
        "On Layer Normalization in the Transformer Architecture",
        "Ruibin Xiong and Yunchang Yang and Di He and Kai Zheng and Shuxin Zheng and Chen Xing and Huishuai Zhang and "
        "Yanyan Lan and Liwei Wang and Tie-Yan Liu",
        2020,
        "International Conference on Machine Learning",
        "2002.04745",
    ),
    "wang2019learning": Paper(
        "Learning Deep Transformer Models for Machine Translation",
        "Qiang Wang and Bei Li and Tong Xiao and Jingbo Zhu and Changliang Li and Derek F. Wong and Lidia S. Chao",
        2019,
        "Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics",
        "1906.01787",
    ),
    "xie2023residual": Paper(
        "ResiDual: Transformer with Dual Residual Connections",
        "Shufang Xie and Huishuai Zhang and Junliang Guo and Xu Tan and Jiang Bian and Hany Hassan Awadalla and "
        "Arul Menezes and Tao Qin and Rui Yan",
        2023,
        arxiv="2304.14802",
    ),
    "takase2023b2t": Paper(
        "B2T Connection: Serving Stability and Performance in Deep Transformers",
        "Sho Takase and Shun Kiyono and Sosuke Kobayashi and Jun Suzuki",
        2023,
        "Findings of the Association for Computational Linguistics: ACL 2023",
        "2206.00330",
    ),
    "liu2020understanding": Paper(
        "Understanding the Difficulty of Training Transformers",
        "Liyuan Liu and Xiaodong Liu and Jianfeng Gao and Weizhu Chen and Jiawei Han",
        2020,
        "Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing",
        "2004.08249",
    ),
    "microsoft2022admin": Paper("admin-torch", "{Microsoft}", 2022, url="https://github.com/microsoft/admin-torch"),
    "liu2020rethinking": Paper(
        "Rethinking Skip Connection with Layer Normalization",
        "Fenglin Liu and Xuancheng Ren and Zhiyuan Zhang and Xu Sun and Yuexian Zou",
        2020,
        "Proceedings of the 28th International Conference on Computational Linguistics",
    ),
    "wang2022deepnet": Paper(
        "DeepNet: Scaling Transformers to 1,000 Layers",
        "Hongyu Wang and Shuming Ma and Li Dong and Shaohan Huang and Dongdong Zhang and Furu Wei",
        2022,
        arxiv="2203.00555",
    ),
    "wang2022foundation": Paper(
        "Foundation Transformers",
        "Hongyu Wang and Shuming Ma and Shaohan Huang and Li Dong and Wenhui Wang and Zhiliang Peng and Yu Wu and "
        "Payal Bajaj and Saksham Singhal and Alon Benhaim and Barun Patra and Zhun Liu and Vishrav Chaudhary and "
        "Xia Song and Furu Wei",
        2022,
        arxiv="2210.06423",
    ),
    "shleifer2021normformer": Paper(
        "NormFormer: Improved Transformer Pretraining with Extra Normalization",
        "Sam Shleifer and Jason Weston and Myle Ott",
        2021,
        arxiv="2110.09456",
    ),
    "he2021realformer": Paper(
        "RealFormer: Transformer Likes Residual Attention",
        "Ruining He and Anirudh Ravula and Bhargav Kanagal and Joshua Ainslie",
        2021,
        "Findings of the Association for Computational Linguistics: ACL-IJCNLP 2021",
        "2012.11747",
    ),
    "huang2020improving": Paper(
        "Improving Transformer Optimization Through Better Initialization",
        "Xiao Shi Huang and Felipe Perez and Jimmy Ba and Maksims Volkovs",
        2020,
        "International Conference on Machine Learning",
    ),
    "bachlechner2020rezero": Paper(
        "ReZero is All You Need: Fast Convergence at Large Depth",
        "Thomas Bachlechner and Bodhisattwa Prasad Majumder and Huanru Henry Mao and Garrison W. Cottrell and "
        "Julian McAuley",
        2020,
        arxiv="2003.04887",
    ),
    "zhang2019fixup": Paper(
        "Fixup Initialization: Residual Learning Without Normalization",
        "Hongyi Zhang and Yann N. Dauphin and Tengyu Ma",
        2019,
        "International Conference on Learning Representations",
        "1901.09321",
    ),
    "ding2021cogview": Paper(
        "CogView: Mastering Text-to-Image Generation via Transformers",
        "Ming Ding and Zhuoyi Yang and Wenyi Hong and Wendi Zheng and Chang Zhou and Da Yin and Junyang Lin and "
        "Xu Zou and Zhou Shao and Hongxia Yang and Jie Tang",
        2021,
        "Advances in Neural Information Processing Systems 34",
        "2105.13290",
    ),
    "kim2025periln": Paper(
        "Peri-LN: Revisiting Normalization Layer in the Transformer Architecture",
        "Jeonghoon Kim and Byeongchan Lee and Cheonbok Park and Yeontaek Oh and Beomjun Kim and Taehwan Yoo and "
        "Seongjin Shin and Dongyoon Han and Jinwoo Shin and Kang Min Yoo",
        2025,
        "International Conference on Machine Learning",
        "2502.02732",
    ),
    "liu2022swin": Paper(
        "Swin Transformer V2: Scaling Up Capacity and Resolution",
        "Ze Liu and Han Hu and Yutong Lin and Zhuliang Yao and Zhenda Xie and Yixuan Wei and Jia Ning and Yue Cao and "
        "Zheng Zhang and Li Dong and Furu Wei and Baining Guo",
        2022,
        "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition",
        "2111.09883",
    ),
    "olmo2025olmo2": Paper("2 OLMo 2 Furious", "{Team OLMo}", 2025, arxiv="2501.00656"),
    "sun2025curse": Paper(
        "The Curse of Depth in Large Language Models",
        "Wenfang Sun and Xinyuan Song and Pengxiang Li and Lu Yin and Yefeng Zheng and Shiwei Liu",
        2025,
        arxiv="2502.05795",
    ),
    "li2024mixln": Paper(
        "Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN",
        "Pengxiang Li and Lu Yin and Shiwei Liu",
        2024,
        arxiv="2412.13795",
    ),
    "zhuo2025hybridnorm": Paper(
        "HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization",
        "Zhijian Zhuo and Yutao Zeng and Ya Wang and Sijun Zhang and Jian Yang and Xiaoqing Li and Xun Zhou and "
        "Jinwen Ma",
        2025,
        arxiv="2503.04598",
    ),
    "touvron2021going": Paper(
        "Going Deeper with Image Transformers",
        "Hugo Touvron and Matthieu Cord and Alexandre Sablayrolles and Gabriel Synnaeve and Herv{\\'e} J{\\'e}gou",
        2021,
        "Proceedings of the IEEE/CVF International Conference on Computer Vision",
        "2103.17239",
    ),
    "de2020batch": Paper(
        "Batch Normalization Biases Residual Blocks Towards the Identity Function in Deep Networks",
        "Soham De and Samuel L. Smith",
        2020,
        "Advances in Neural Information Processing Systems 33",
        "2002.10444",
    ),
    "li2026siamesenorm": Paper(
        "SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm",
        "Tianyu Li and Dongchen Han and Zixuan Cao and Haofeng Huang and Mengyu Zhou and Ming Chen and "
        "Erchao Zhao and Xiaoxi Jiang and Guanjun Jiang and Gao Huang",
        2026,
        arxiv="2602.08064",
    ),
    "zhu2024hyper": Paper(
        "Hyper-Connections",
        "Defa Zhu and Hongzhi Huang and Zihao Huang and Yutao Zeng and Yunyao Mao and Banggu Wu and Qiyang Min and "
        "Xun Zhou",
        2024,
        arxiv="2409.19606",
    ),
    "xie2025mhc": Paper(
        "mHC: Manifold-Constrained Hyper-Connections",
        "Zhenda Xie and Yixuan Wei and Huanqi Cao and Chenggang Zhao and Chengqi Deng and Jiashi Li and Damai Dai and "
        "Huazuo Gao and Jiang Chang and Liang Zhao and Shangyan Zhou and Zhean Xu and Zhengyan Zhang and "
        "Wangding Zeng and Shengding Hu and Yuqing Wang and Jingyang Yuan and Lean Wang and Wenfeng Liang",
        2025,
        arxiv="2512.24880",
    ),
    "kimi2026attention": Paper("Attention Residuals", "{Kimi Team}", 2026, arxiv="2603.15031"),
    "post2018call": Paper(
        "A Call for Clarity in Reporting BLEU Scores",
        "Matt Post",
        2018,
        "Proceedings of the Third Conference on Machine Translation: Research Papers",
        "1804.08771",
    ),
    "koehn2004statistical": Paper(
        "Statistical Significance Tests for Machine Translation Evaluation",
        "Philipp Koehn",
        2004,
        "Proceedings of the 2004 Conference on Empirical Methods in Natural Language Processing",
    ),
}

PAPERS_OF_MODE = {
    "admin": ("liu2020understanding",),
    "admin_torch": ("microsoft2022admin", "liu2020understanding"),
    "attention_residuals": ("kimi2026attention",),
    "b2t": ("takase2023b2t",),
    "b2t_no_ln": ("takase2023b2t",),
    "deep_norm": ("wang2022deepnet",),
    "dlcl_post": ("wang2019learning",),
    "dlcl_pre": ("wang2019learning",),
    "fixup": ("zhang2019fixup",),
    "hybrid_norm": ("zhuo2025hybridnorm",),
    "hyper_connections": ("zhu2024hyper",),
    "layer_scale": ("touvron2021going",),
    "ln_scaling": ("sun2025curse",),
    "mhc": ("xie2025mhc",),
    "mix_ln": ("li2024mixln",),
    "normformer": ("shleifer2021normformer",),
    "output_ln": ("liu2022swin", "olmo2025olmo2"),
    "peri_ln": ("kim2025periln",),
    "post_ln": ("vaswani2017attention",),
    "pre_ln": ("xiong2020layer", "wang2019learning"),
    "realformer": ("he2021realformer",),
    "resi_dual": ("xie2023residual",),
    "rezero": ("bachlechner2020rezero",),
    "rezero_post_ln": ("liu2020understanding", "bachlechner2020rezero"),
    "rskip_ln": ("liu2020rethinking",),
    "sandwich_ln": ("ding2021cogview",),
    "siamese_norm": ("li2026siamesenorm",),
    "skip_init": ("de2020batch",),
    "sub_ln": ("wang2022foundation",),
    "t_fixup": ("huang2020improving",),
    "wskip_ln": ("liu2020rethinking",),
    "xskip": ("liu2020rethinking",),
    "xskip_ln": ("liu2020rethinking",),
}
