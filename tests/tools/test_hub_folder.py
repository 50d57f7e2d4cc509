"""`hatch-lower hub-folder`: a wheel, its SBOM and its model card as files of the Hugging Face hub."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.sides import PLAIN, record_members, write_wheel

from hatch_lower.cli.entry import main
from hatch_lower.driver.sbom.markdown import CardFacts, card_page

FACTS = CardFacts("digits", "1.0", "Digits", "MIT", "digits-1.0-py3-none-any.whl")
CARD = {
    "modelParameters": {
        "task": "image-classification",
        "modelArchitecture": "digits.Net",
        "inputs": [{"format": "forward: image: float32[batch, 1, 8, 8]"}],
        "outputs": [{"format": "forward: float32[batch, 10]"}],
        "datasets": [{"name": "Digits", "description": "1,797 images", "contents": {"url": "https://example.org"}}],
    },
    "considerations": {
        "useCases": ["telling digits apart"],
        "technicalLimitations": ["no letters"],
        "ethicalConsiderations": [{"name": "a wrong digit", "mitigationStrategy": "ask a person"}],
    },
    "quantitativeAnalysis": {"performanceMetrics": [{"type": "accuracy", "value": "0.98", "slice": "held out"}]},
}


def sbom_of(card: Any = CARD, **model: Any) -> dict[str, Any]:
    properties = [{"name": "hatch-lower:recipe:default:backends", "value": "openvino"}]
    known = {"type": "machine-learning-model", "name": "digits", "modelCard": card, "properties": properties}
    return {"bomFormat": "CycloneDX", "components": [known | model]}


def wheel_of(folder: Path, sbom: str) -> Path:
    path = write_wheel(folder / "digits-1.0-py3-none-any.whl", {"digits": PLAIN})
    return record_members(path, {"digits-1.0.dist-info/sboms/hatch-lower.cdx.json": sbom.encode()})


def hub_folder(wheel: Path, to: Path) -> Result:
    return CliRunner().invoke(main, ["hub-folder", str(wheel), "--to", str(to)])


def test_the_folder_has_the_wheel_its_sbom_and_its_card(tmp_path: Path) -> None:
    sbom = json.dumps(sbom_of())
    wheel = wheel_of(tmp_path, sbom)
    done = hub_folder(wheel, tmp_path / "hub")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "hub" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / "hub/hatch-lower.cdx.json").read_text() == sbom
    assert "# digits 1.0\n" in (tmp_path / "hub/README.md").read_text()


def test_the_page_says_what_the_card_says() -> None:
    page = card_page(sbom_of(), FACTS)
    assert page.startswith(
        '---\nlicense: "mit"\nlibrary_name: hatch-lower\npipeline_tag: "image-classification"\n'
        'tags: ["hatch-lower", "pytorch", "openvino"]\n---\n'
    )
    for line in (
        "- forward: image: float32\\[batch, 1, 8, 8\\]",
        "- Digits: 1,797 images: https://example.org",
        "- telling digits apart",
        "- no letters",
        "- a wrong digit: ask a person",
        "- accuracy: 0.98: held out",
    ):
        assert f"\n{line}\n" in page


def test_the_hubs_own_library_reads_the_front_matter() -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard(card_page(sbom_of(), FACTS)).data.to_dict()
    assert (data["license"], data["pipeline_tag"], data["library_name"]) == (
        "mit",
        "image-classification",
        "hatch-lower",
    )


@pytest.mark.parametrize("value", [None, 1, "text", [], [1], {"modelParameters": []}, {"considerations": {"users": 3}}])
def test_a_card_of_another_form_is_left_out(value: Any) -> None:
    assert "## digits\n" in card_page(sbom_of(value), FACTS)


@pytest.mark.parametrize("url", ["", "https://example.org/w.safetensors"])
def test_weights_outside_of_the_wheel_are_fetched_after_the_installation(url: str) -> None:
    sbom = sbom_of()
    weights = {
        "type": "data",
        "name": "w.safetensors",
        "properties": [{"name": "hatch-lower:role", "value": "weights"}],
    }
    sbom["components"].append(weights | ({"externalReferences": [{"url": url}]} if url else {}))
    page = card_page(sbom, FACTS)
    option, place = ("", f": {url}") if url else (" --from URL", "")
    assert f"$ pip install {FACTS.wheel}\n$ hatch-lower fetch digits{option}\n```\n" in page
    assert f"\n### Weights outside of the wheel\n\n- w.safetensors{place}\n\n## digits\n" in page
    assert "fetch" not in card_page(sbom_of(), FACTS)


def test_a_text_cannot_write_another_page() -> None:
    page = card_page(sbom_of(name="<script>\n---\n# other"), FACTS)
    assert "\n# other" not in page
    assert "<script>" not in page.replace('"<script>', "")


@pytest.mark.parametrize(
    ("licence", "name"),
    [
        ("MIT AND Apache-2.0", "mit-and-apache-2.0"),
        ("LicenseRef-Ours", "licenseref-ours"),
        ("GPL-3.0-or-later", "gpl-3.0-or-later"),
        ("Größe\n  of\nall", "gr-e-of-all"),
        ("☃", "unknown"),
    ],
)
def test_a_licence_that_the_hub_does_not_know_is_other_with_a_name(licence: str, name: str) -> None:
    page = card_page(sbom_of(), CardFacts("digits", "1.0", "", licence, "digits.whl"))
    assert page.startswith(f'---\nlicense: "other"\nlicense_name: "{name}"\n')


def test_a_licence_that_the_hub_knows_by_a_shorter_name_has_that_name() -> None:
    page = card_page(sbom_of(), CardFacts("digits", "1.0", "", "GPL-3.0-only", "digits.whl"))
    assert page.startswith('---\nlicense: "gpl-3.0"\nlibrary_name')


def test_a_licence_of_the_card_stands_if_the_metadata_has_none() -> None:
    card = {**CARD, "properties": [{"name": "license", "value": "Apache-2.0"}]}
    assert 'license: "apache-2.0"\n' in card_page(sbom_of(card), CardFacts("digits", "1.0", "", "", "digits.whl"))


def test_a_wheel_without_an_sbom_is_refused(tmp_path: Path) -> None:
    done = hub_folder(write_wheel(tmp_path / "digits-1.0-py3-none-any.whl", {"digits": PLAIN}), tmp_path / "hub")
    assert "there is no SBOM of lowered models" in done.output
    assert not (tmp_path / "hub").exists()


def test_a_wheel_of_an_unknown_distribution_or_with_other_files_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, json.dumps(sbom_of()))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("digits/more.py", b"")
    done = hub_folder(wheel, tmp_path / "hub")
    assert "`digits/more.py`, which the RECORD does not list" in done.output
    record_members(wheel, {"digits-1.0.dist-info/METADATA": b""})
    assert "no field `Name` in METADATA" in hub_folder(wheel, tmp_path / "hub").output
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("sbom", ["{", "[]", "null", "{}", '{"components": [{"type": "library"}]}'])
def test_a_damaged_sbom_is_refused(tmp_path: Path, sbom: str) -> None:
    done = hub_folder(wheel_of(tmp_path, sbom), tmp_path / "hub")
    assert "hatch-lower.cdx.json" in done.output
    assert not (tmp_path / "hub").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    done = hub_folder(wheel_of(tmp_path, json.dumps(sbom_of())), tmp_path)
    assert "has other files" in done.output
    assert [path.suffix for path in tmp_path.iterdir()] == [".whl"]


@pytest.mark.parametrize("name", ["digits-1.0-py3-none-any-null.whl", "digits.whl"])
def test_a_name_that_pip_does_not_install_is_refused(tmp_path: Path, name: str) -> None:
    wheel = wheel_of(tmp_path, json.dumps(sbom_of())).rename(tmp_path / name)
    done = hub_folder(wheel, tmp_path / "hub")
    assert done.output == (
        f"error: pip does not install a file of this name\n  where: {wheel}\n"
        "  found: not the name of a wheel, or the name of a wheel variant\n"
        "  to do: name the wheel as `hatch build` named it, without a variant's label\n"
    )
    assert not (tmp_path / "hub").exists()
