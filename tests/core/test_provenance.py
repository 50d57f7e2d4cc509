"""The SBOM of a wheel, held against CycloneDX's own schema for each kind of model."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hatch_lower.cache.store import Store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.driver.sbom import SbomInputs
from hatch_lower.driver.sbom.card import read_cards
from hatch_lower.driver.sbom.document import document_text, required_texts
from hatch_lower.errors import ConfigError, PackageError
from hatch_lower.format.arguments import Symbol, TensorInput, Value
from hatch_lower.format.codec import encode
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.graph import Graph, OpCall
from hatch_lower.format.manifest import FileEntry, MethodEntry, ModelEntry, RecipeEntry, model_json
from hatch_lower.format.plan import MethodPlan, Parameter, Plan, write_plan
from hatch_lower.format.record import Architecture, BackendRecord
from hatch_lower.format.results import SBOM_FILE, BuildResult, ModelResult, PayloadFile
from hatch_lower.format.tree import Container, Leaf
from hatch_lower.format.weights import StorageSpan, Weights, WeightsSource, write_weights
from hatch_lower.hatch.sbom import add_sbom, check_hatchling, find_library_version
from hatch_lower.hatch.wheel import check_fixed_time, fixed_time

TOOLS = {"hatchling": "1.28.0", "cyclonedx-python-lib": "11.12.0"}
PLAN = Plan(
    (),
    {},
    (),
    {
        "forward": MethodPlan(
            (Parameter("image", "positional", Leaf()),),
            (TensorInput("float32", ("s0", 8), (8, 1)),),
            {"s0": Symbol(1, 1024, "batch")},
            Graph((0,), (OpCall("aten.relu.default", (Value(0),), {}, 1),), (Value(1), Value(1))),
            (),
            (),
            Container("dict", (Leaf(), Leaf()), ("logits", "again")),
        )
    },
)
PORTABLE = Architecture("digits.model.Net", 1250, {"forward": ("float32[batch, 10]", "int64[batch]")})
NATIVE = BackendRecord(
    "aoti", "hatch-lower", "0.1.0", {"aoti": "1", "settings": "ab" * 32, "compiler": "g++ (Debian 12.2.0-14) 12.2.0"}
)
CARD: dict[str, Any] = {
    "modelParameters": {
        "approach": {"type": "supervised"},
        "task": "image-classification",
        "datasets": [
            {"type": "dataset", "name": "digits “ä”", "contents": {"url": "https://example.org/a?b=c#d"}},
            {"type": "other", "governance": {"owners": [{"contact": {"name": "First", "email": "first@example.org"}}]}},
        ],
    },
    "quantitativeAnalysis": {"performanceMetrics": [{"type": "accuracy", "value": "0.98", "slice": "test"}]},
    "considerations": {
        "useCases": ["sorting letters"],
        "ethicalConsiderations": [{"name": "none is known"}],
        "environmentalConsiderations": {
            "energyConsumptions": [
                {
                    "activity": "training",
                    "energyProviders": [
                        {
                            "organization": {"name": "Power", "url": ["https://example.org"]},
                            "energySource": "wind",
                            "energyProvided": {"value": 1.5, "unit": "kWh"},
                            "externalReferences": [{"type": "website", "url": "https://example.org"}],
                        }
                    ],
                    "activityEnergyCost": {"value": 1, "unit": "kWh"},
                }
            ]
        },
    },
    "properties": [{"name": "license", "value": "Apache-2.0"}],
}

COMMIT = "0123456789" * 4
OUTSIDE = Weights(
    (
        WeightsSource(f"hf://org/name@{COMMIT}/model.safetensors", 100, "a" * 64),
        WeightsSource("d-m-00.safetensors", 50, "b" * 64),
    ),
    {"c" * 64: StorageSpan(0, 8, 16, "d" * 64)},
)

Make = Callable[..., SbomInputs]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a subject with one model; its files are written."""

    def file(path: str, data: bytes, files: list[PayloadFile]) -> FileEntry:
        source = tmp_path / hashlib.sha256(data + path.encode()).hexdigest()
        source.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        files.append(PayloadFile(path, source, len(data), digest))
        return FileEntry(path, len(data), digest)

    def make(
        *names: str,
        card: Mapping[str, Any] | None = None,
        architecture: Architecture = PORTABLE,
        backends: tuple[BackendRecord, ...] = (),
        weights: bytes = b"",
        outside: Weights | None = None,
        timestamp: int | None = None,
        package: Callable[[str], str] = lambda name: "digits",
    ) -> SbomInputs:
        settings, results, payload = [], [], list[PayloadFile]()
        for name in names or ("digits",):
            files: list[PayloadFile] = []
            recipes = {}
            for recipe in ["default", "portable"] if backends else ["default"]:
                native = bool(backends) and recipe == "default"
                delegates = (file(f"{name}/delegates/00.so", b"native", files),) if native else ()
                recipes[recipe] = RecipeEntry(
                    file(f"{name}/{recipe}.json", write_plan(PLAN), files),
                    file(f"{name}/{recipe}.debug.json", b"{}", files),
                    delegates,
                    tuple(each.name for each in backends) if native else (),
                    ("hatch-lower>=0.1", "torch==2.13.*") if native else ("hatch-lower>=0.1",),
                    TargetEntry("Linux", "x86_64", "x86-64-v3") if native else None,
                    {"forward": MethodEntry(1, int(native), int(native))},
                )
            constants = file(f"{name}/constants.safetensors", weights, files) if weights else None
            check = file(f"{name}/check.safetensors", b"check", files)
            places = file(f"{name}/weights.json", write_weights(outside), files) if outside else None
            entry = ModelEntry(tuple(recipes), constants, check, recipes, weights=places)
            settings.append(ModelSettings(name, f"{name}.model:export", package(name), tuple(recipes)))
            origin = {"architecture": encode(architecture), "backends": encode(backends)}
            tools = {"g++": "12.2.0"} if backends else {}
            results.append(ModelResult(name, model_json(entry), tuple(files), (), (), tools, "2.13.0+cpu", origin))
            folder = f"{package(name).replace('.', '/')}/_lowered"
            payload += [replace(each, path=f"{folder}/{each.path}") for each in files]
            if all(each.path != f"{folder}/manifest.json" for each in payload):
                file(f"{folder}/manifest.json", b"manifest", payload)
        project = Settings(Path("project"), "Digits_of.Me", "1.0+local", tuple(settings), (Recipe("default"),))
        result = BuildResult(tuple(payload), (), {"default": ("hatch-lower>=0.1",)}, (), tuple(results))
        cards = {} if card is None else dict.fromkeys(names or ("digits",), card)
        return SbomInputs(project, cards, result, TOOLS, "3.11.7", timestamp)

    return make


def checked(subject: SbomInputs) -> dict[str, Any]:
    """Return a subject's document; it has to fit the schema."""
    text = document_text(subject)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, error
    document: dict[str, Any] = json.loads(text)
    return document


def by_ref(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all components by their references."""
    components = [*document["components"], *document["metadata"]["tools"]["components"]]
    components += [part for each in components for part in each.get("components", [])]
    found = {each["bom-ref"]: each for each in components}
    assert len(found) == len(components), "a reference stands for two components"
    return found


def facts(component: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"].removeprefix("hatch-lower:"): each["value"] for each in component.get("properties", [])}


KINDS: dict[str, dict[str, Any]] = {
    "without weights": {},
    "of an unknown class": {"architecture": Architecture("", 0, {})},
    "with weights": {"weights": b"weights"},
    "with a card": {"weights": b"weights", "card": CARD},
    "with weights outside": {"outside": OUTSIDE},
    "with native code": {"weights": b"weights", "card": CARD, "backends": (NATIVE,)},
    "of a backend of this process": {"backends": (BackendRecord("Own", "", "", {}),)},
    "at a fixed time": {"timestamp": 1580601600},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_of_each_kind_of_model_fits_the_schema(make: Make, kind: str) -> None:
    subject = make(**KINDS[kind])
    document = checked(subject)
    assert document["metadata"].get("timestamp") == ("2020-02-02T00:00:00+00:00" if "time" in kind else None)
    root = document["metadata"]["component"]
    assert (root["name"], root["purl"]) == ("digits-of-me", "pkg:pypi/digits-of-me@1.0%2Blocal")
    components = by_ref(document)
    files = {each["name"]: each["hashes"] for each in components.values() if each["type"] == "file"}
    assert files == {file.path: [{"alg": "SHA-256", "content": file.sha256}] for file in subject.result.payload}, (
        "every file of the payload, and nothing else"
    )
    for each in document["dependencies"]:
        assert {each["ref"], *each.get("dependsOn", ())} <= {*components, root["bom-ref"]}


def test_several_models_in_several_packages_have_components_of_their_own(make: Make) -> None:
    subject = make("digits", "letters", card=CARD, backends=(NATIVE,), package=lambda name: f"shop.{name}")
    components = by_ref(checked(subject))
    assert {"model:digits", "model:letters"} <= components.keys()
    assert "file:shop/letters/_lowered/letters/default.json" in components
    assert "file:shop/letters/_lowered/manifest.json" in components


def test_the_precision_of_a_recipe_is_a_property(make: Make) -> None:
    subject = make("digits", backends=(NATIVE,))
    entry: Any = subject.result.models[0].entry
    entry["recipes"]["portable"]["precision"] = "int8"
    told = facts(by_ref(checked(subject))["model:digits"])
    assert told["recipe:portable:precision"] == "int8"
    assert "recipe:default:precision" not in told


def test_the_document_says_what_a_model_is_made_of(make: Make) -> None:
    document = checked(make(weights=b"weights", card=CARD, backends=(NATIVE,)))
    components = by_ref(document)
    model = components["model:digits"]
    assert model["type"] == "machine-learning-model"
    assert facts(model) == {
        "architecture": "digits.model.Net",
        "export": "digits.model:export",
        "methods": "forward",
        "package": "digits",
        "parameters": "1250",
        "recipe:default:backends": "aoti",
        "recipe:default:method:forward": "1 of 1 nodes delegated",
        "recipe:default:target": "Linux x86_64 x86-64-v3",
        "recipe:portable:backends": "none",
        "recipe:portable:method:forward": "0 of 1 nodes delegated",
        "recipes": "default, portable",
        "weights:sha256": hashlib.sha256(b"weights").hexdigest(),
        "weights:size": "7",
    }
    parameters = {
        "inputs": [{"format": "forward: image: float32[batch, 8]"}],
        "modelArchitecture": "digits.model.Net",
        "outputs": [{"format": "forward: {'logits': float32[batch, 10], 'again': int64[batch]}"}],
    }
    assert model["modelCard"] == {**CARD, "modelParameters": {**CARD["modelParameters"], **parameters}}
    assert facts(components["file:digits/_lowered/digits/delegates/00.so"]) == {
        "recipe": "default",
        "role": "delegate",
        "size": "6",
    }
    needs = next(each["dependsOn"] for each in document["dependencies"] if each["ref"] == "model:digits")
    assert {"requirement:hatch-lower>=0.1", "requirement:torch==2.13.*"} <= set(needs)
    assert components["requirement:torch==2.13.*"]["purl"] == "pkg:pypi/torch"


def test_the_document_names_a_recipe_that_is_not_compared(make: Make) -> None:
    subject = make(backends=(NATIVE,))
    (model,) = subject.result.models
    recipes = model.entry["recipes"]
    entry = {**model.entry, "recipes": {**recipes, "default": {**recipes["default"], "not_compared": "no `GPU` here"}}}
    changed = replace(subject, result=replace(subject.result, models=(replace(model, entry=entry),)))
    told = facts(by_ref(checked(changed))["model:digits"])
    assert told["recipe:default:not-compared"] == "no `GPU` here"
    assert "recipe:portable:not-compared" not in told


def test_weights_outside_have_a_place_and_a_digest(make: Make) -> None:
    document = checked(make("digits", "letters", outside=OUTSIDE))
    hub, beside = (f"weights:{source.sha256}:{source.url}" for source in OUTSIDE.sources)
    components = by_ref(document)
    hashes = [{"alg": "SHA-256", "content": "a" * 64}]
    place = {"type": "distribution", "url": OUTSIDE.sources[0].url, "hashes": hashes}
    assert components[hub]["name"] == "model.safetensors"
    assert (components[hub]["type"], components[hub]["hashes"]) == ("data", hashes)
    assert components[hub]["externalReferences"] == [place]
    assert facts(components[hub]) == {"role": "weights", "size": "100"}
    assert "externalReferences" not in components[beside]
    for model in ("model:digits", "model:letters"):
        needs = next(each["dependsOn"] for each in document["dependencies"] if each["ref"] == model)
        assert {hub, beside} <= set(needs)
    assert facts(components["file:digits/_lowered/digits/weights.json"])["role"] == "places of weights"


def test_a_checkpoint_of_the_hub_has_its_repository_and_commit(make: Make) -> None:
    subject = make("digits", "letters", "plain")
    export = f"transformers:org/name@{COMMIT}#fill-mask"
    models = [replace(each, export=export) if each.name != "plain" else each for each in subject.settings.models]
    components = by_ref(checked(replace(subject, settings=replace(subject.settings, models=tuple(models)))))
    for model in ("digits", "letters"):
        (origin,) = components[f"model:{model}"]["pedigree"]["ancestors"]
        assert (origin["type"], origin["name"], origin["version"]) == ("machine-learning-model", "org/name", COMMIT)
        assert origin["purl"] == f"pkg:huggingface/org/name@{COMMIT}"
    assert "pedigree" not in components["model:plain"]


def test_the_tools_have_versions(make: Make) -> None:
    document = checked(make(backends=(NATIVE,)))
    tools = {each["name"]: each for each in document["metadata"]["tools"]["components"]}
    versions = {name: each["version"] for name, each in tools.items()}
    assert versions.pop("hatch-lower")
    assert versions == {**TOOLS, "Python": "3.11.7", "aoti": "0.1.0", "g++": "12.2.0", "torch": "2.13.0+cpu"}
    assert tools["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert facts(tools["aoti"])["fingerprint:compiler"] == "g++ (Debian 12.2.0-14) 12.2.0"


def test_the_same_contents_give_the_same_bytes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = make(weights=b"weights", card=CARD, backends=(NATIVE,))
    first = document_text(subject)
    random.seed(5)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert document_text(subject) == first
    number = json.loads(first)["serialNumber"]
    others = [
        make(weights=b"others!", card=CARD, backends=(NATIVE,)),
        make(weights=b"weights", card={**CARD, "properties": []}, backends=(NATIVE,)),
        make(weights=b"weights", card=CARD, backends=(NATIVE,), timestamp=0),
    ]
    numbers = {json.loads(document_text(each))["serialNumber"] for each in others}
    assert len({number, *numbers}) == 4, "another document has another serial number"


def test_whatever_shapes_the_document_is_in_its_key(make: Make) -> None:
    subject = make(weights=b"weights", card=CARD, backends=(NATIVE,))
    others = [
        make(weights=b"others!", card=CARD, backends=(NATIVE,)),
        make(weights=b"weights", card={"modelParameters": {"task": "another"}}, backends=(NATIVE,)),
        make(weights=b"weights", card=CARD, backends=(replace(NATIVE, version="0.2"),)),
        make(weights=b"weights", card=CARD, backends=(NATIVE,), architecture=replace(PORTABLE, parameters=3)),
        replace(subject, tools={**TOOLS, "hatchling": "1.29.0"}),
        replace(subject, python="3.12.1"),
        replace(subject, timestamp=1),
        replace(subject, settings=replace(subject.settings, version="2")),
        replace(subject, settings=replace(subject.settings, name="other")),
    ]
    assert len({each.digest() for each in [subject, *others]}) == 1 + len(others)
    assert all(document_text(each) != document_text(subject) for each in others)


def test_where_files_lie_is_neither_in_the_key_nor_in_the_document(make: Make, tmp_path: Path) -> None:
    subject = make(weights=b"weights")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = []
    for file in subject.result.payload:
        source = elsewhere / file.source.name
        source.write_bytes(file.source.read_bytes())
        moved.append(replace(file, source=source))
    other = replace(subject, result=replace(subject.result, payload=tuple(moved)))
    assert other.digest() == subject.digest()
    assert document_text(other) == document_text(subject)
    assert str(tmp_path) not in document_text(subject)


def test_a_known_document_is_taken_from_the_cache(make: Make, tmp_path: Path) -> None:
    subject = make(weights=b"weights", card=CARD)
    store = Store(tmp_path / "cache", "on", pytest.fail)
    for number in range(2):
        work = tmp_path / str(number)
        work.mkdir()
        build_data: dict[str, Any] = {"sbom_files": []}
        add_sbom(build_data, subject.settings, subject.cards, subject.result, work, store)
        assert build_data["sbom_files"] == [str(work / SBOM_FILE)]
        for file in subject.result.payload:  # a second time there is nothing to read
            file.source.unlink(missing_ok=True)
    assert (tmp_path / "0" / SBOM_FILE).read_bytes() == (tmp_path / "1" / SBOM_FILE).read_bytes()


def read_one(root: Path, text: str | bytes) -> Mapping[str, Any]:
    (root / "card.json").write_bytes(text.encode() if isinstance(text, str) else text)
    models = (ModelSettings("digits", "digits.model:export", "digits", ("default",), card="card.json"),)
    return read_cards(Settings(root, "digits", "1", models, (Recipe("default"),)))["digits"]


def test_a_card_is_taken_as_it_is(tmp_path: Path) -> None:
    assert read_one(tmp_path, json.dumps(CARD)) == CARD


def test_a_model_without_card_has_none(tmp_path: Path) -> None:
    models = (ModelSettings("digits", "digits.model:export", "digits", ("default",)),)
    assert read_cards(Settings(tmp_path, "digits", "1", models, (Recipe("default"),))) == {}


def edited(path: str, value: object) -> str:
    """Return the card as JSON with one value replaced."""
    card = json.loads(json.dumps(CARD))
    *above, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    place = card
    for part in above:
        place = place[part]
    place[last] = value
    return json.dumps(card)


ENERGY = "considerations/environmentalConsiderations/energyConsumptions/0"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", "`modelCard` must be an object, found an array"),
        ("{", "no JSON: Expecting property name"),
        (b"\xff", "no JSON: 'utf-8' codec"),
        ('{"properties": [{"name": NaN}]}', "no JSON"),
        ('{"properties": [{"name": "\\ud800"}]}', "no JSON"),
        ("[" * 100_000, "JSON that nests too deeply"),
        (" " * ((1 << 20) + 1), "more than 1,048,576 bytes"),
        (edited("modelParameter", {}), "`modelCard.modelParameter` is not a field of a model's card; did you mean"),
        (edited("bom-ref", "model:digits"), "`modelCard.bom-ref` is not a field of a model's card"),
        (edited("x" * 5000, 1), f"`modelCard.{'x' * 60}` is not a field"),
        (edited("\x1b[2J", 1), '`modelCard."\\u001b[2J"` is not a field'),
        (edited("modelParameters", 3), "`modelCard.modelParameters` must be an object, found the number 3"),
        (edited("modelParameters/task", True), "`modelCard.modelParameters.task` must be a string, found the boolean"),
        (edited("modelParameters/approach/type", "guessing"), "must be one of supervised, unsupervised, "),
        (
            edited("modelParameters/datasets/0", {"name": "a"}),
            "`modelCard.modelParameters.datasets[0].type` is missing",
        ),
        (edited("modelParameters/datasets/0", {"ref": "a"}), "`modelCard.modelParameters.datasets[0].ref` is not a"),
        (edited("modelParameters/datasets/0/contents/url", "a b"), "contents.url` must be a URL, found the string"),
        (edited("modelParameters/datasets/1/governance/owners/0", {}), "must have one of `organization`, `contact`"),
        (edited("modelParameters/datasets/1/governance/owners/0/contact/email", "x"), "must be an email address"),
        (edited("considerations/useCases", "sorting"), "`modelCard.considerations.useCases` must be an array"),
        (edited(f"{ENERGY}/activityEnergyCost/value", "much"), "activityEnergyCost.value` must be a number"),
        (edited(f"{ENERGY}/energyProviders/0/externalReferences/0/url", {}), "url` must be a string, found a table"),
    ],
)
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, text: str | bytes, found: str) -> None:
    with pytest.raises(ConfigError, match="a model's card is not valid") as caught:
        read_one(tmp_path, text)
    assert found in caught.value.found
    assert caught.value.where == "model `digits`, card `card.json`"


def test_a_card_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "card.json").mkdir()
    models = (ModelSettings("digits", "digits.model:export", "digits", ("default",), card="card.json"),)
    with pytest.raises(ConfigError, match="a model's card is not valid"):
        read_cards(Settings(tmp_path, "digits", "1", models, (Recipe("default"),)))


def test_the_schema_of_a_card_is_that_of_cyclonedx() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, root / "tools" / "model_card.py"], check=True, capture_output=True, text=True
    )
    assert (root / "hatch_lower" / "driver" / "sbom" / "model-card.json").read_text() == done.stdout


def test_what_a_build_of_the_known_imports_is_light(modules_after: Callable[[str], set[str]]) -> None:
    modules = modules_after("import hatch_lower.hatch.sbom")
    assert "hatchling" in modules
    assert not modules & {"cyclonedx", "packageurl", "torch", "hatch_lower.driver.sbom.document"}


def test_an_old_hatchling_is_refused_before_anything_is_lowered() -> None:
    with pytest.raises(PackageError, match="this hatchling cannot put an SBOM into a wheel") as caught:
        check_hatchling({"dependencies": []})
    assert 'requires = ["hatchling>=1.28", …]' in str(caught.value)


@pytest.mark.parametrize("text", ["0", "1580601600", str(2**32 - 1)])
def test_a_time_of_the_environment_is_taken(text: str) -> None:
    check_fixed_time({"SOURCE_DATE_EPOCH": text})
    assert fixed_time({"SOURCE_DATE_EPOCH": text}) == int(text)
    check_fixed_time({})
    assert fixed_time({}) is None


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9", " 1", "1.5", "\u0663", str(2**32), "9" * 30])
def test_a_time_that_no_archive_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the time of the build is not a number of seconds since 1970") as caught:
        check_fixed_time({"SOURCE_DATE_EPOCH": text})
    assert caught.value.found == f"`{text}`"


def test_a_librarys_version_is_that_of_its_metadata() -> None:
    from importlib.metadata import version

    assert find_library_version("cyclonedx-python-lib") == version("cyclonedx-python-lib")


def test_the_document_lists_one_build_of_a_library_for_recipes_without_an_extra() -> None:
    recipes = {"gpu": {"requirements": ["onnxruntime-gpu<2"]}, "cpu": {"requirements": ["numpy", "onnxruntime<2"]}}
    assert required_texts(recipes, []) == ["numpy", "onnxruntime-gpu<2"]
    assert required_texts(recipes, ["gpu", "cpu"]) == ["numpy", "onnxruntime-gpu<2", "onnxruntime<2"]
