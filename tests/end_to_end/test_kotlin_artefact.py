"""The Kotlin core as others take it: installed to a local Maven repository, used by a program of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ANDROID, CONTRACT = ROOT / "android_demo", ROOT / "tests" / "contract"
GUIDE = ROOT / "docs" / "guide" / "embed_in_an_android_app.md"
POM = "{http://maven.apache.org/POM/4.0.0}"
GROUP, VERSION = "io.github.pathweave", "0.1.0"
URL = "https://code.example.org/pathweave"
R8 = re.findall(r"<r8.version>([\d.]+)<", (ANDROID / "pom.xml").read_text())[0]
DEPENDENCIES = {  # all there are: name -> its property in the pom that is built from
    "org.jetbrains.kotlin:kotlin-stdlib": "kotlin.version",
    "org.jetbrains.kotlinx:kotlinx-serialization-json-jvm": "serialization.version",
    "org.jetbrains.kotlinx:kotlinx-coroutines-core-jvm": "coroutines.version",
    "org.bouncycastle:bcprov-jdk18on": "bouncycastle.version",
    "com.microsoft.onnxruntime:onnxruntime": "onnxruntime.version",  # optional: Android's has the same classes
}


@pytest.fixture(scope="module")
def repository(jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Maven repository with the core installed; what was downloaded before is linked into it."""
    folder = tmp_path_factory.mktemp("artefact")
    repository, sources = folder / "repository", folder / "android_demo"
    known = Path.home() / ".m2" / "repository"
    known.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns("pathweave", "*.part", "*.lock", "resolver-status.properties")
    shutil.copytree(known, repository, copy_function=os.symlink, ignore=ignored)
    shutil.copytree(ANDROID, sources, ignore=shutil.ignore_patterns("target", ".gradle"))
    maven(repository, sources, "--projects", "core", "install", "-Dmaven.test.skip", f"-Dpathweave.url={URL}")
    return repository


def maven(repository: Path, folder: Path, *arguments: str) -> None:
    command = ["mvn", "-q", "-B", "-f", str(folder), f"-Dmaven.repo.local={repository}", *arguments]
    environment = {**os.environ, "MAVEN_OPTS": "-XX:TieredStopAtLevel=1"}  # the second compiler would not pay off
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(repository: Path) -> Path:
    return repository.joinpath(*GROUP.split("."), "pathweave-core", VERSION)


@pytest.fixture(scope="module")
def sample(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The compiled sample, and the jars that it needs."""
    folder = shutil.copytree(
        ANDROID / "sample", tmp_path_factory.mktemp("sample") / "sample", ignore=shutil.ignore_patterns("target")
    )
    maven(repository, folder, "process-classes")
    return folder / "target" / "classes", (folder / "target" / "classpath.txt").read_text().strip().split(os.pathsep)


def answer_of(jars: Iterable[Path | str], folder: Path) -> None:
    """Run the sample from ``jars`` on the reference bundle."""
    (folder / "key.pub").write_text(json.loads((CONTRACT / "vectors.json").read_bytes())["signature"]["public_key"])
    classes = os.pathsep.join(map(str, jars))
    command = ["java", "-cp", classes, "SampleKt", str(CONTRACT / "bundle"), str(folder / "key.pub")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"(blue|green|red) by subnet in [\d.E-]+ ms\n", done.stdout), done.stderr


def test_the_sample_compiles_against_it_and_runs(sample: tuple[Path, list[str]], tmp_path: Path) -> None:
    classes, jars = sample
    assert any(Path(jar).name == f"pathweave-core-{VERSION}.jar" for jar in jars)
    answer_of([classes, *jars], tmp_path)


def test_shrunk_by_the_rules_in_the_jar_the_sample_still_runs(
    repository: Path, installed: Path, sample: tuple[Path, list[str]], tmp_path: Path
) -> None:
    classes, jars = sample
    maven(
        repository,
        ANDROID / "sample",
        "org.apache.maven.plugins:maven-dependency-plugin:3.9.0:copy",
        f"-Dartifact=com.android.tools:r8:{R8}",
        f"-DoutputDirectory={tmp_path}",
    )
    with zipfile.ZipFile(installed / f"pathweave-core-{VERSION}.jar") as jar:
        rules = jar.read("META-INF/proguard/pathweave-core.pro").decode()
    keep = "-keep class SampleKt { public static void main(java.lang.String[]); }\n-ignorewarnings\n-dontoptimize\n"
    (tmp_path / "rules.pro").write_text(rules + keep)
    shutil.make_archive(str(tmp_path / "sample"), "zip", classes)
    onnxruntime = next(jar for jar in jars if Path(jar).name.startswith("onnxruntime-"))
    shrunk = tmp_path / "shrunk.jar"
    home = os.environ.get("JAVA_HOME") or str(Path(shutil.which("javac") or "").resolve().parents[1])
    command = ["java", "-cp", str(tmp_path / f"r8-{R8}.jar"), "com.android.tools.r8.R8", "--classfile", "--release"]
    command += ["--lib", home, "--classpath", onnxruntime, "--pg-conf", str(tmp_path / "rules.pro")]
    command += ["--output", str(shrunk), str(tmp_path / "sample.zip"), *(jar for jar in jars if jar != onnxruntime)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    unsigned = tmp_path / "unsigned.jar"  # Bouncy Castle's signature is of the classes before
    with zipfile.ZipFile(shrunk) as found, zipfile.ZipFile(unsigned, "w", zipfile.ZIP_DEFLATED) as kept:
        for name in found.namelist():
            if not name.endswith((".SF", ".RSA", ".DSA")):
                kept.writestr(name, found.read(name))
    assert unsigned.stat().st_size < 0.2 * sum(Path(jar).stat().st_size for jar in jars if jar != onnxruntime)
    answer_of([unsigned, onnxruntime], tmp_path)


def test_its_pom_stands_alone_and_says_what_a_repository_asks_for(installed: Path) -> None:
    text = (installed / f"pathweave-core-{VERSION}.pom").read_text()
    pom = ElementTree.fromstring(text)
    assert "${" not in text
    for absent in ("parent", "dependencyManagement", "build", "profiles", "modules"):
        assert pom.find(POM + absent) is None, absent
    for name in ("name", "description", "licenses/license/name", "developers/developer/name"):
        assert pom.findtext("/".join(POM + part for part in name.split("/"))), name
    assert pom.findtext(f"{POM}url") == pom.findtext(f"{POM}scm/{POM}url") == URL


def test_it_needs_little_and_names_the_versions_that_are_tested(installed: Path) -> None:
    pom = ElementTree.parse(installed / f"pathweave-core-{VERSION}.pom").getroot()
    built = dict(re.findall(r"<([\w.]+)>([\w.-]+)</", (ANDROID / "pom.xml").read_text()))
    found = {}
    for one in pom.iter(f"{POM}dependency"):
        group, name, version, scope = (
            one.findtext(POM + part) for part in ("groupId", "artifactId", "version", "scope")
        )
        assert scope in ("compile", None), f"{name} is {scope}"
        found[f"{group}:{name}"] = version
        assert (one.findtext(f"{POM}optional") == "true") == (name == "onnxruntime"), name
    assert found == {name: built[version] for name, version in DEPENDENCIES.items()}


def test_the_jar_has_rules_for_r8_and_finds_nothing_by_name(installed: Path) -> None:
    with zipfile.ZipFile(installed / f"pathweave-core-{VERSION}.jar") as jar:
        rules = jar.read("META-INF/proguard/pathweave-core.pro").decode()
        assert "-keep class ai.onnxruntime.** { *; }" in rules.splitlines()
        assert "Automatic-Module-Name: pathweave.sdk" in jar.read("META-INF/MANIFEST.MF").decode()
        classes = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert "pathweave/sdk/AdaptiveModel.class" in classes
    # One class looks for Android's own Os.setenv, which no shrinking removes.
    assert classes.pop("pathweave/sdk/runtimes/RuntimePortKt.class").count(b"android.system.Os") == 1
    for name, code in classes.items():  # class files name in plain bytes what they call
        for reflection in (
            b"java/lang/reflect/",
            b"forName",
            b"java/util/ServiceLoader",
            b"kotlin/reflect/full",
            b"org/junit",
        ):
            assert reflection not in code, f"{name}: {reflection.decode()}"


def test_sources_and_documentation_come_with_it(installed: Path) -> None:
    with zipfile.ZipFile(installed / f"pathweave-core-{VERSION}-sources.jar") as jar:
        assert "pathweave/sdk/AdaptiveModel.kt" in jar.namelist()
    with zipfile.ZipFile(installed / f"pathweave-core-{VERSION}-javadoc.jar") as jar:
        pages = jar.namelist()
        assert any(page.endswith("index.html") for page in pages)
        page = next(
            page for page in pages if re.search(r"adaptive-?model/index\.html$|/AdaptiveModel\.html$", page, re.I)
        )
        assert "A packaged model that runs here" in jar.read(page).decode()


def test_the_guide_has_the_sample_and_its_versions() -> None:
    guide, sample = GUIDE.read_text(), (ANDROID / "sample" / "src" / "main" / "kotlin" / "Sample.kt").read_text()
    assert f"```kotlin\n{sample}```" in guide
    built = dict(re.findall(r"<([\w.]+)>([\w.-]+)</", (ANDROID / "pom.xml").read_text()))
    used = dict(re.findall(r"<([\w.]+)>([\w.-]+)</", (ANDROID / "sample" / "pom.xml").read_text()))
    for name in ("kotlin.version", "onnxruntime.version", "dependency.version"):
        assert used[name] == built[name], name
    assert f'"{GROUP}:pathweave-core:{VERSION}"' in guide
