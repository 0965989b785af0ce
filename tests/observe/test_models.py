"""Which models were chosen for names that stand for models: counted, and told on the page of the latest decisions."""

from __future__ import annotations

import json

import orjson

from extproc.core.models.virtual import ModelPolicy, VirtualModel
from extproc.core.snapshot import Policy
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.stream.conversation import CHAT, chat, one


def test_a_chosen_model_is_counted_and_told() -> None:
    """By the name that was asked for; of a request that names its model nothing is added."""
    models = ModelPolicy(virtual={"auto": VirtualModel(name="auto", models=(MODEL, "unserved"))})
    made = router(instance(), policy=Policy(models=models))
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    for number, name in enumerate(("auto", MODEL, "auto")):
        exchange = Exchange(made, str(number), Rules())
        exchange.receive(RequestHeaders("POST", CHAT, last=False), 0.0, 0.0)
        reply = one(exchange.receive(RequestBody(orjson.dumps(chat(model=name))), 0.0, 0.0))
        assert not isinstance(reply, Errand)
        observer.replied(exchange, reply, 0.001)
    page = observer.page().decode()
    assert f'extproc_model_choices_total{{asked="auto",model="{MODEL}"}} 2.0' in page
    assert f'asked="{MODEL}"' not in page
    first, second, _ = json.loads(json.dumps(observer.recent()))
    assert second["models"] is None
    assert (first["model"], first["models"]["asked"], first["models"]["chosen"]) == (MODEL, "auto", MODEL)
    assert first["models"]["models"][1]["reason"] == "model_not_served"
