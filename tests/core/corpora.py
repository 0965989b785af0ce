"""English, Chinese, code and JSON of any length, without a download: from the standard library, or composed here."""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import random
import sysconfig
import uuid
from pathlib import Path
from typing import Any

_SUBJECTS = (
    "这家公司 我的同事 研究人员 很多用户 那位医生 图书馆里的学生 新来的工程师 政府部门 大多数消费者 附近的居民 "
    "产品经理 我们的团队 一名记者 系统管理员 外国游客 老王和他的邻居 市场分析师 小镇上的孩子们 航空公司 数据中心"
).split()
_TIMES = (
    "昨天下午 最近几个月 在会议上 上个星期五 从去年开始 经过反复讨论 由于天气原因 随着技术的发展 为了降低成本 "
    "在许多城市 按照原来的计划 除了周末以外 到目前为止 几年以前 出乎意料的是 根据最新的报告"
).split()
_ACTIONS = (
    "发现了一个严重的问题，需要立刻处理 决定把旧的服务器全部换掉 对这种做法表示怀疑 "
    "完成了第一阶段的测试工作 提出了三条不同的建议 终于找到了合适的办法 每天要花两个小时坐地铁 "
    "开始重视环境保护和节约用水 买了一台便宜的笔记本电脑 在网上看到了相关的新闻 "
    "希望能够提高生产效率 不知道应该如何回答 把结果整理成一份详细的说明 要求大家遵守交通规则 "
    "已经连续工作了十几个小时 准备参加明年春天的比赛 认为价格还会继续上涨 收到了来自各地的感谢信 "
    "打算学习一门外语和钢琴 拒绝透露更多的细节"
).split()
_KEYS = (
    "id name user account created_at updated status amount price currency items tags email address city country "
    "description title url score enabled metadata source target value timestamp latency request response level trace"
).split()


def english() -> list[str]:
    """Python's reference manual."""
    return [text for text in pydoc_data.topics.topics.values() if len(text) > 1500]


def chinese(chance: random.Random) -> list[str]:
    """Everyday sentences in new combinations."""

    def sentence() -> str:
        parts = [chance.choice(_TIMES) + "，", chance.choice(_SUBJECTS), chance.choice(_ACTIONS)]
        if chance.random() < 0.3:
            parts.append(f"，一共{chance.randint(2, 99)}次")
        return "".join(parts) + chance.choice("。。。！？")

    return ["".join(sentence() for _ in range(300)) for _ in range(60)]


def code() -> list[str]:
    """Sources of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in folder.glob("*.py") if path.stat().st_size > 4000)
    return [path.read_text("utf-8", "replace") for path in files]


def json_texts(chance: random.Random) -> list[str]:
    """Records as services send them, dense and indented."""
    words = sorted({word for text in english()[:20] for word in text.lower().split() if word.isalpha()})
    texts = []
    for number in range(60):
        keys = chance.sample(_KEYS, chance.randint(4, 12))
        records = [{key: _value(chance, words) for key in keys} for _ in range(120)]
        texts.append(json.dumps(records, indent=(None, None, 2, 4)[number % 4]))
    return texts


def _value(chance: random.Random, words: list[str]) -> Any:
    match chance.randrange(8):
        case 0:
            return chance.randint(0, 10 ** chance.randint(1, 10))
        case 1:
            return round(chance.random() * 1000, chance.randint(1, 6))
        case 2:
            return chance.choice((True, False, None))
        case 3:
            return str(uuid.UUID(int=chance.getrandbits(128)))
        case 4:
            return f"20{chance.randint(10, 29)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T12:30:05Z"
        case 5:
            return f"https://{chance.choice(words)}.example.com/{chance.choice(words)}/{chance.randint(1, 9999)}"
        case _:
            return " ".join(chance.choice(words) for _ in range(chance.randint(1, 20)))


def corpora(seed: int) -> dict[str, list[str]]:
    """Texts by kind."""
    chance = random.Random(seed)
    return {"english": english(), "chinese": chinese(chance), "code": code(), "json": json_texts(chance)}


def prompt_of(texts: list[str], chance: random.Random, shortest: int = 200, longest: int = 50_000) -> str:
    """A prompt cut from some texts, its length in bytes drawn evenly on a logarithmic scale."""
    size = int(math.exp(chance.uniform(math.log(shortest), math.log(longest))))
    prompt = b""
    while len(prompt) < size:
        text = chance.choice(texts).encode()
        start = chance.randrange(max(1, len(text) - size))
        prompt += text[start : start + size - len(prompt)]
    return prompt.decode("utf-8", "ignore")
