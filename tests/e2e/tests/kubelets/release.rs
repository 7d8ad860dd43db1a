//! A release, from its files to a cluster whose nodes pull every image by its digest from a registry, and what the pages tell
//! people to type there: the installation's smoke test, the runbooks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::release::{self, architecture};
use andreas_e2e::scenario::scenario;
use andreas_e2e::{fenced, install};
use andreas_kubelets::Registry;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use crate::training::of_process;
use crate::{nodes, real};

/// What `tests/kubelets/images` wrote, of debug builds, or the release that `ANDREAS_RELEASE` names (`make release WHAT=install-release`).
pub fn files() -> PathBuf {
    let named = std::env::var_os("ANDREAS_RELEASE").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node-release"))
}

/// The digest that the registry's index of an image has in the release's chart.
fn pins() -> Result<Vec<String>> {
    let folder = files();
    let chart = std::fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("andreas-") && name.ends_with(".tgz")
    });
    let mut tar = std::process::Command::new("tar");
    let output = tar.arg("-xzOf").arg(chart.context("a chart")?).arg("andreas/values.yaml").output()?;
    let values: Value = serde_saphyr::from_str(&String::from_utf8(output.stdout)?)?;
    let pinned = [
        ("operator", "image"),
        ("extender", "image"),
        ("agent", "image"),
        ("nodePower", "image"),
        ("test", "image"),
        ("test", "trainer"),
    ];
    let digest = |(section, key): (&str, &str)| values[section][key]["digest"].as_str().map(str::to_owned);
    pinned
        .into_iter()
        .map(|pin| digest(pin).filter(|digest| !digest.is_empty()).context("a digest"))
        .collect()
}

/// Every container of ours runs an image of the registry, by a digest of the chart, that its node has pulled.
async fn pulled_by_digest(c: &Cluster) -> Result<()> {
    let (registry, pins) = (Registry::address(), pins()?);
    let mut seen = 0;
    for namespace in ["andreas-system", "andreas-node"] {
        let pods = Api::<Pod>::namespaced(c.testbed.client(), namespace).list(&ListParams::default()).await?;
        for pod in pods {
            let name = pod.name_any();
            for status in pod.status.and_then(|status| status.container_statuses).unwrap_or_default() {
                if status.image_id.contains("kube-scheduler") || status.name == "kube-scheduler" {
                    continue;
                }
                let digest = status.image_id.split_once('@').map(|(_, digest)| digest).unwrap_or_default();
                let ours = status.image_id.starts_with(&format!("{registry}/andreas/"));
                ensure!(
                    ours && pins.iter().any(|pin| pin == digest),
                    "{name}: {}: {}",
                    status.name,
                    status.image_id
                );
                seen += 1;
            }
        }
    }
    ensure!(seen >= 2 + 2 * 2, "{seen} containers");
    let pulled = c.kubectl("get events --all-namespaces --field-selector reason=Pulled --output=jsonpath={.items[*].message}").await?;
    let fetched = pulled.matches(&format!("Successfully pulled image \"{registry}/andreas/")).count();
    ensure!(fetched >= 3, "{fetched} were pulled: {pulled}");
    Ok(())
}

/// Blocks of `sh` in the runbooks are typed where kubectl is. Those of `bash` need a machine of one's own, or a program that is
/// not here.
async fn every_command_of_a_runbook_works(c: &Cluster) -> Result<()> {
    let node = nodes(c)?.nodes().first().context("a node")?.name().to_owned();
    let pod = c
        .kubectl(&format!(
            "get pods --namespace andreas-node --selector app.kubernetes.io/component=agent \
             --field-selector spec.nodeName={node} --output=jsonpath={{.items[*].metadata.name}}"
        ))
        .await?;
    for (page, line) in fenced::lines_of_runbooks("sh")? {
        let command = line.replace("POD", &pod).replace("NODE", &node);
        // That grep finds nothing is an answer, and so is that there is nothing. What kubectl says of an error it says there.
        let script = format!(
            "errors=$(mktemp); trap 'rm -f \"$errors\"' EXIT; {{ {command}\n}} 2>\"$errors\" || [ $? = 1 ]; \
             ! grep -vE '^(No resources found|Defaulted container)' \"$errors\""
        );
        let said = release::bash(&c.testbed, &files(), &script).await.with_context(|| page.clone())?;
        println!("{page}: {command}\n{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_installed_from_its_files_alone_and_passes_the_smoke_test() -> Result<()> {
    let options = Options { release: Some(files()), ..real(2) };
    scenario(options, async |c| {
        // given the release's images in a registry, and its chart installed by its script
        pulled_by_digest(c).await?;
        for (program, user) in [("andreas-operator", "65532"), ("andreas-extender", "65532")] {
            let on = c
                .kubectl("get pods --namespace andreas-system --output=jsonpath={.items[*].spec.nodeName}")
                .await?;
            let mut found = 0;
            for node in nodes(c)?.nodes().iter().filter(|node| on.contains(node.name())) {
                if let Ok(uid) = of_process(node, program, "Uid").await {
                    ensure!(uid.split_whitespace().all(|uid| uid == user), "{program} runs as {uid}");
                    found += 1;
                }
            }
            ensure!(found > 0, "{program} runs nowhere");
        }
        // once the operator has seen this scenario's policy
        c.kubectl("wait energypolicy default --for=jsonpath={.status.observedGeneration}=1 --timeout=180s")
            .await?;
        // then what the installation's page says shows that it works, a job to its end included
        let smoke = fenced::below("docs/installation.md", "See that it works", "sh")?;
        let said = release::bash(&c.testbed, &files(), &smoke).await?;
        println!("{smoke}\n{said}");
        // Account, right, its binding, the job, and the pod that waits for its end.
        let succeeded = said.matches("Phase:          Succeeded").count();
        ensure!(succeeded == 5 && !said.contains("Phase:          Failed"), "helm test: {said}");
        every_command_of_a_runbook_works(c).await?;
        let left = c.kubectl("get trainingjobs --all-namespaces --output=name").await?;
        ensure!(left.trim().is_empty(), "the test left {left}");
        // and it goes as it came
        install::uninstall(&c.testbed).await
    })
    .await
}

#[test]
fn krews_manifest_names_the_archives_by_their_digests() -> Result<()> {
    let file = files().join("andreas.yaml");
    if std::env::var_os("ANDREAS_RELEASE").is_some() && !file.exists() {
        println!("this release has no manifest for krew: it was made without --url");
        return Ok(());
    }
    let text = std::fs::read_to_string(file)?;
    let manifest: Value = serde_saphyr::from_str(&text)?;
    let platforms = manifest["spec"]["platforms"].as_array().context("platforms")?;
    ensure!(!platforms.is_empty() && !text.contains("VERSION") && !text.contains("PLATFORMS"), "{text}");
    for platform in platforms {
        let name = platform["uri"].as_str().and_then(|uri| uri.rsplit('/').next()).context("an address")?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &std::fs::read(files().join(name))?);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(platform["sha256"] == hex, "{platform}: {hex}");
    }
    Ok(())
}

/// A file of an OCI archive, as JSON.
fn in_archive(archive: &Path, name: &str) -> Result<Value> {
    let output = std::process::Command::new("tar").arg("-xOf").arg(archive).arg(name).output()?;
    ensure!(output.status.success(), "{}: no {name}", archive.display());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a descriptor in an OCI archive names.
fn described(archive: &Path, descriptor: &Value) -> Result<Value> {
    let digest = descriptor["digest"].as_str().context("a digest")?;
    in_archive(archive, &format!("blobs/{}", digest.replace(':', "/")))
}

/// Name of an archive's image, without the registry that names mean which have none, and its user for each architecture.
fn name_and_users(archive: &Path) -> Result<(String, Vec<String>)> {
    let top = in_archive(archive, "index.json")?;
    let name = top["manifests"][0]["annotations"]["io.containerd.image.name"].as_str().context("a name")?;
    let (mut open, mut users) = (vec![top.clone()], Vec::new());
    while let Some(index) = open.pop() {
        for descriptor in index["manifests"].as_array().context("an index")? {
            let found = described(archive, descriptor)?;
            if found["manifests"].is_array() {
                open.push(found);
                continue;
            }
            let config = described(archive, &found["config"])?;
            users.push(config["config"]["User"].as_str().context("a user")?.to_owned());
        }
    }
    Ok((name.trim_start_matches("docker.io/").to_owned(), users))
}

/// User by image, of the table below the heading "Images" of the page on builds.
fn users_of_the_page() -> Result<BTreeMap<String, String>> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/build.md"))?;
    let (_, table) = page.split_once("| image | contents | user |\n|---|---|---|\n").context("the table")?;
    let mut users = BTreeMap::new();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let &[_, names, _, user, _] = cells.as_slice() else { anyhow::bail!("{row}") };
        let user = user.trim().split(',').next().unwrap_or_default();
        let names = names.split('`').skip(1).step_by(2);
        users.extend(names.map(|name| (name.to_owned(), user.to_owned())));
    }
    Ok(users)
}

#[test]
fn every_image_has_the_user_that_the_page_on_builds_names() -> Result<()> {
    let mut users = users_of_the_page()?;
    for part in PARTS {
        let (name, found) = name_and_users(&files().join(format!("images/{part}.tar")))?;
        let untagged = name.rsplit_once(':').map_or(name.as_str(), |(before, _)| before);
        let user = users.remove(&name).or_else(|| users.remove(untagged));
        let user = user.with_context(|| format!("the page names no user of {name}"))?;
        println!("{name}: {found:?}");
        ensure!(
            !found.is_empty() && found.iter().all(|one| *one == format!("{user}:{user}")),
            "{name}: {found:?}"
        );
    }
    ensure!(users.is_empty(), "no images: {users:?}");
    Ok(())
}

/// Every image.
const PARTS: [&str; 6] = ["cli", "extender", "node-agent", "node-power", "operator", "trainer"];

#[test]
fn images_made_twice_have_the_same_digests() -> Result<()> {
    let made = || -> Result<Vec<(String, Vec<u8>)>> {
        let folder = tempfile::tempdir()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = std::process::Command::new(root.join("hack/images"))
            .args(["--no-build", "--profile", "debug", "--arch", architecture(), "--out"])
            .arg(folder.path())
            .args(PARTS)
            .output()?;
        ensure!(output.status.success(), "hack/images: {}", String::from_utf8_lossy(&output.stderr));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder.path())? {
            let entry = entry?;
            files.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
        }
        files.sort();
        Ok(files)
    };
    let (first, second) = (made()?, made()?);
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    let archives = PARTS.map(|part| format!("{part}-{}.tar", architecture()));
    let mut wanted: Vec<&str> =
        archives.iter().map(String::as_str).chain(["SHA256SUMS", "digests.json"]).collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    // digests.json among them
    ensure!(first == second, "the same programs gave other bytes");
    Ok(())
}
