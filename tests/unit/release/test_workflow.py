# SPDX-License-Identifier: Apache-2.0
"""The workflows, step by step, as far as that is possible without publishing anything."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

import ebpflb
from tests.unit.release.workflow import (
    EXPRESSION,
    RELEASE,
    ROOT,
    WORKFLOWS,
    Step,
    expressions,
    read,
    steps,
)

SCRIPTS = [
    pytest.param(step, id=f"{workflow.stem}-{step.job}-{step.number}")
    for workflow in WORKFLOWS
    for step in steps(workflow)
    if step.run
]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PAGE = (ROOT / "docs/releases.md").read_text()
VERSION = ebpflb.__version__
# The inputs that these actions have at the commits in use; GitHub ignores any other with a warning.
INPUTS = {
    "actions/attest-build-provenance": {
        *("subject-name", "subject-digest", "subject-checksums", "push-to-registry")
    },
    "actions/checkout": {"persist-credentials", "fetch-depth"},
    "actions/download-artifact": {"name", "path", "pattern", "merge-multiple"},
    "actions/upload-artifact": {"name", "path"},
    "docker/setup-buildx-action": set(),
    "sigstore/cosign-installer": set(),
}
# Whose variables a script may use beside those of the workflow and its own.
OF_GITHUB = re.compile(r"GITHUB_\w+|PWD")


def published() -> list[str]:
    """The files of a release, as .ci/release and .ci/plugin name them."""
    plugin = (ROOT / ".ci/plugin").read_text()
    platforms = re.findall(r"^archive (\S+) ", plugin, re.MULTILINE)
    archives = [f"kubectl-ebpflb-{name}.tar.gz" for name in platforms]
    ends = (".tar.gz", ".tgz", "-py3-none-any.whl")
    return [*(f"ebpflb-{VERSION}{end}" for end in ends), *archives, "ebpflb.yaml"]


def done(pattern: str) -> Step:
    """The only step of a release whose script has this text."""
    (found,) = (step for step in steps(RELEASE) if pattern in step.run)
    return found


@pytest.mark.parametrize("step", SCRIPTS)
def test_each_script_is_understood_by_its_shell(step: Step):
    script = EXPRESSION.sub("word", step.run)
    ran = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("step", SCRIPTS)
def test_what_a_script_calls_is_in_the_repository(step: Step):
    for path in re.findall(r"(?:^|\s)(\.ci/[\w/]+)", step.run):
        assert (ROOT / path).stat().st_mode & 0o100, path
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|\n)make ([a-z-]+)", step.run):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_scripts_of_a_release_stop_at_a_failure_within_a_pipe():
    assert read(RELEASE)["defaults"] == {"run": {"shell": "bash"}}


def test_actions_have_the_inputs_that_they_are_given():
    used = [step for step in steps(RELEASE) if step.action]
    assert {step.action for step in used} == set(INPUTS)
    for step in used:
        assert set(step.inputs) <= INPUTS[step.action], step


def test_a_job_uses_only_what_exists_when_it_starts():
    jobs = read(RELEASE)["jobs"]
    for name, job in jobs.items():
        needed = job.get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        ids = {step["id"] for step in job["steps"] if "id" in step}
        outputs = {
            f"needs.{other}.outputs.{key}"
            for other in needed
            for key in jobs[other].get("outputs", {})
        }
        known = outputs | {f"matrix.{key}" for key in job.get("strategy", {}).get("matrix", {})}
        known |= {f"env.{key}" for key in read(RELEASE)["env"]}
        for each in expressions({key: job[key] for key in job if key != "outputs"}):
            if found := re.match(r"(needs|matrix|env)\.[\w.]+", each):
                assert found[0] in known, f"{name}: {each}"
        for each in expressions(job):
            if found := re.match(r"steps\.(\w+)\.outputs\.(\w+)", each):
                assert found[1] in ids, f"{name}: {each}"
                (step,) = (step for step in job["steps"] if step.get("id") == found[1])
                assert re.search(rf'echo "{found[2]}=.*>>"\$GITHUB_OUTPUT"', step["run"])


def test_scripts_use_only_variables_that_are_set():
    of_workflow = set(read(RELEASE)["env"])
    for step in steps(RELEASE):
        own = set(step.content.get("env", {})) | set(re.findall(r"\b([A-Z_]+)=", step.run))
        for name in set(re.findall(r"\$\{?([A-Z][A-Z_]+)", step.run)):
            assert name in of_workflow | own or OF_GITHUB.fullmatch(name), f"{step}: {name}"


def test_what_a_job_downloads_another_one_has_uploaded():
    given = [step for step in steps(RELEASE) if step.action == "actions/upload-artifact"]
    names = [EXPRESSION.sub("*", step.inputs["name"]) for step in given]
    taken = [step for step in steps(RELEASE) if step.action == "actions/download-artifact"]
    wanted = [step.inputs.get("name") or step.inputs["pattern"] for step in taken]
    assert sorted(wanted) == ["digests-*", "files"]
    for each in wanted:
        assert any(fnmatch(name.replace("*", "x"), each) for name in names)


def test_the_images_are_those_of_the_dockerfile_for_the_machines_that_are_promised():
    matrix = read(RELEASE)["jobs"]["image"]["strategy"]["matrix"]
    stages = set(re.findall(r"^FROM .* AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert set(matrix["runtime"]) <= stages
    assert f"ARG RUNTIME={matrix['runtime'][0]}" in DOCKERFILE
    assert f"image for {' and '.join(matrix['arch'])}, `X.Y.Z` and `X.Y.Z-slim`" in PAGE
    built, created = done("buildx build").run, done("imagetools create").run
    assert ">digests/${{ matrix.runtime }}-${{ matrix.arch }}" in built
    assert re.findall(r"for runtime in (.*); do", created) == [" ".join(matrix["runtime"])]
    assert re.findall(r"digests/\$runtime-(\w+)", created) == matrix["arch"]
    platforms = ", ".join(f'"linux/{arch}"' for arch in matrix["arch"])
    assert f".[{platforms}]" in done("{{ json .SBOM }}").run


def test_the_dockerfile_has_the_arguments_that_it_is_given():
    used = set(re.findall(r"--build-arg (\w+)=", done("buildx build").run))
    assert used == {"BASE_IMAGE", "RUNTIME", "VERSION", "REVISION"}
    assert used <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize("verb", ["sign-blob", "gh release create"])
def test_every_file_is_signed_and_published(verb: str):
    """Those of the checksums, and the checksums."""
    patterns = [Path(each).name for each in re.findall(r"dist/\S+", done(verb).run)]
    for name in (*published(), "SHA256SUMS"):
        assert any(fnmatch(name, pattern.rstrip(";")) for pattern in patterns), name


def test_every_file_has_a_checksum_and_so_a_provenance():
    (line,) = re.findall(r"^sha256sum (.*) >SHA256SUMS", done(".ci/plugin").run, re.MULTILINE)
    assert all(any(fnmatch(name, each) for each in line.split()) for name in published())
    attested = [step.inputs for step in steps(RELEASE) if "attest" in step.action]
    assert {"subject-checksums": "dist/SHA256SUMS"} in attested


def test_image_and_chart_have_signature_and_provenance_beside_them():
    assert "--sbom=true --provenance=mode=max" in done("buildx build").run
    assert 'cosign sign --yes --recursive "$IMAGE@$digest"' in done("imagetools create").run
    assert 'cosign sign --yes "$CHARTS/ebpflb@$digest"' in done("helm push").run
    attested = [step.inputs for step in steps(RELEASE) if "attest" in step.action]
    assert {
        "subject-name": "${{ env.CHARTS }}/ebpflb",
        "subject-digest": "${{ steps.chart.outputs.digest }}",
        "push-to-registry": True,
    } in attested


def test_who_signs_may_do_so():
    jobs = read(RELEASE)["jobs"]
    for step in steps(RELEASE):
        rights = jobs[step.job].get("permissions", {})
        if "cosign sign" in step.run or "attest" in step.action:
            assert rights["id-token"] == "write"
        if "attest" in step.action:
            assert rights["attestations"] == "write"
        if re.search(r"helm push|push=true|imagetools create", step.run):
            assert rights["packages"] == "write"
        if "gh release create" in step.run:
            assert rights["contents"] == "write"


def as_github(text: str) -> str:
    """With what GitHub puts in for the tag vX.Y.Z of OWNER/ebpflb."""
    env = read(RELEASE)["env"]
    known = {
        "github.repository": "OWNER/ebpflb",
        "github.repository_owner": "OWNER",
        "github.server_url": "https://github.com",
    }
    known |= {key: EXPRESSION.sub(lambda found: known[found[1]], env[key]) for key in env}
    known |= {
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_WORKFLOW_REF": f"OWNER/ebpflb/{RELEASE.relative_to(ROOT)}@refs/tags/vX.Y.Z",
        "GITHUB_REPOSITORY": "OWNER/ebpflb",
        "GITHUB_REF_NAME#v": "X.Y.Z",
    }
    return re.sub(r"\$\{?([A-Z_]+(?:#v)?)\}?", lambda found: known.get(found[1], found[0]), text)


def test_users_verify_what_the_workflow_signs_with_the_identity_that_it_has():
    """The same signer, issuer and names, in the page and in the steps that verify."""
    ran = as_github("".join(step.run for step in steps(RELEASE)))
    page = PAGE.replace("\\\n", " ")
    identity = r"--certificate-identity \"?([^\s\"]+)\"?"
    issuer = r"--certificate-oidc-issuer (\S+?)\)?\s"
    for option in (identity, issuer):
        assert len(set(re.findall(option, page))) == 1
        assert set(re.findall(option, page)) == set(re.findall(option, ran))
    verified = set(re.findall(r"cosign verify (\S+)", page))
    assert verified == {"ghcr.io/OWNER/ebpflb:X.Y.Z", "ghcr.io/OWNER/charts/ebpflb:X.Y.Z"}
    assert 'name="ghcr.io/OWNER/ebpflb:X.Y.Z${suffix:+-$suffix}"' in ran
    assert 'cosign verify "$name"' in ran
    assert 'cosign verify "ghcr.io/OWNER/charts/ebpflb:X.Y.Z"' in ran
    assert 'cosign verify-blob "${bundle%.sigstore.json}" --bundle "$bundle"' in ran
    assert "cosign verify-blob ebpflb-X.Y.Z.tgz --bundle ebpflb-X.Y.Z.tgz.sigstore.json" in page
    provenance = "gh attestation verify oci://ghcr.io/OWNER/charts/ebpflb:X.Y.Z --repo OWNER/ebpflb"
    assert provenance in page
    assert provenance in ran.replace('"', "")


def test_nothing_is_verified_before_it_is_published_and_nothing_after_the_release():
    order = [step.run for step in steps(RELEASE)]
    places = [
        order.index(done(text).run)
        for text in ("imagetools create", "helm push", "sign-blob", "verify-blob", "gh release")
    ]
    assert places == sorted(places)


def test_one_version_is_released():
    chart = (ROOT / "charts/ebpflb/Chart.yaml").read_text()
    assert f"\nversion: {VERSION}\nappVersion: {VERSION}\n" in chart
    assert f"\nARG VERSION={VERSION}\n" in DOCKERFILE
    assert '--build-arg VERSION="${GITHUB_REF_NAME#v}"' in done("buildx build").run
