//! The chart as it renders: what a change of a template changes is seen in the change, not in a cluster.
//!
//! `charts/andreas/tests/golden/default.yaml` holds all objects with the default values; the files of some other sets of values hold the
//! objects that are other than those, and the names of those that are missing. `make generate WHAT=crds` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use andreas_e2e::chart;
use andreas_testbed::Programs;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// A name, and what it is rendered with: the chart's files of values for a platform, and single values.
pub(super) const SETS: [(&str, &[&str]); 20] = [
    ("default", &[]),
    ("gke", &["values-gke.yaml"]),
    ("eks", &["values-eks.yaml"]),
    ("aks", &["values-aks.yaml"]),
    ("openshift", &["values-openshift.yaml"]),
    ("k3s", &["values-k3s.yaml"]),
    ("argocd", &["values-argocd.yaml", "crds.enabled=true"]),
    ("affinity", &["operator.schedulerMode=affinity", "scheduler.enabled=false"]),
    ("replicated", &["operator.replicas=2", "scheduler.replicas=2", "networkPolicy.enabled=false"]),
    (
        "pod-monitors",
        &[
            "monitoring.podMonitor.enabled=true",
            "monitoring.podMonitor.labels.release=stack",
            "monitoring.authorization.credentials.name=scraper",
            "monitoring.rules.enabled=true",
            "monitoring.rules.disabled={AndreasPredictionsOff}",
            "monitoring.rules.runbookUrl=https://wiki.example/runbooks/",
            "scheduler.enabled=false",
        ],
    ),
    ("gpu-operator", &["values-gpu-operator.yaml"]),
    ("prometheus-operator", &["values-prometheus-operator.yaml"]),
    (
        "service-monitors",
        &[
            "monitoring.serviceMonitor.enabled=true",
            "monitoring.authentication=false",
            "operator.podAnnotations.team=ml",
        ],
    ),
    (
        "agent-off",
        &[
            "agent.enabled=false",
            "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
            "networkPolicy.progressFrom[0].ipBlock.cidr=10.0.0.0/8",
            "networkPolicy.apiServerPorts={16443}",
            "networkPolicy.dnsPorts={53,5353}",
        ],
    ),
    (
        "agent-observes",
        &[
            "agent.observe=true",
            "agent.runtimeClassName=nvidia",
            "agent.createNamespace=false",
            "agent.hostPID=false",
        ],
    ),
    ("node-power", &["nodePower.enabled=true", "nodePower.metal3=true"]),
    ("notifications", &["notifications.hosts={hooks.slack.com,*.ci.example.com}"]),
    (
        "cert-manager",
        &[
            "certificates.issuer=certManager",
            "certificates.certManager.issuerRef.kind=ClusterIssuer",
            "certificates.certManager.issuerRef.name=company-ca",
        ],
    ),
    (
        "own-names",
        &[
            "fullnameOverride=power",
            "image.registry=registry.example",
            "image.pullSecrets[0].name=pull",
            "operator.lease=power-leader",
            "operator.tls.existingSecret=operator-keys",
            "agent.namespace=gpu-agents",
            "agent.privileged=true",
            "agent.serviceAccount.name=watts",
            "agent.extraEnv[0].name=TZ,agent.extraEnv[0].value=UTC",
        ],
    ),
    (
        "extras",
        &[
            "operator.extraEnv[0].name=TZ,operator.extraEnv[0].value=UTC",
            "operator.extraVolumes[0].name=zones,operator.extraVolumes[0].configMap.name=zones",
            "operator.extraVolumeMounts[0].name=zones,operator.extraVolumeMounts[0].mountPath=/zones",
            "operator.podSecurityContext.fsGroup=1000",
            "operator.securityContext.runAsUser=1000",
            "scheduler.extraEnv[0].name=TZ,scheduler.extraEnv[0].value=UTC",
            "scheduler.extraVolumes[0].name=zones,scheduler.extraVolumes[0].configMap.name=zones",
            "scheduler.extraVolumeMounts[0].name=zones,scheduler.extraVolumeMounts[0].mountPath=/zones",
            "scheduler.podSecurityContext.fsGroup=1000",
            "scheduler.securityContext.runAsUser=1000",
            "extender.extraEnv[0].name=TZ,extender.extraEnv[0].value=UTC",
            "extender.extraVolumeMounts[0].name=zones,extender.extraVolumeMounts[0].mountPath=/zones",
            "extender.securityContext.runAsUser=1000",
            "agent.namespace=andreas-system",
            "agent.privileged=true",
            "agent.securityContextConstraints.enabled=true",
            "resourceQuota.enabled=true",
            "policies.disabled={deadline,creator,scheduling}",
        ],
    ),
];

/// The sets whose objects are kept in files.
const KEPT: [&str; 8] =
    ["default", "node-power", "notifications", "gke", "openshift", "argocd", "affinity", "cert-manager"];

/// What helm prints, without a cluster: as Argo CD and others render it.
async fn template(values: &[&str]) -> Result<String> {
    template_for("v1.36.4", values).await
}

async fn template_for(version: &str, values: &[&str]) -> Result<String> {
    template_by(&Programs::find().await?.path("helm"), version, values).await
}

async fn template_by(helm: &Path, version: &str, values: &[&str]) -> Result<String> {
    template_of(helm, &chart::folder(), version, values).await
}

async fn template_of(helm: &Path, chart: &Path, version: &str, values: &[&str]) -> Result<String> {
    let mut helm = Command::new(helm);
    let home = std::env::temp_dir().join(format!("andreas-golden-{}", std::process::id()));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        helm.env(variable, &home);
    }
    helm.args(["template", "andreas"]).arg(chart);
    helm.args(["--namespace", "andreas-system", "--kube-version", version, "--set", "crds.enabled=false"]);
    for value in values {
        if value.contains('=') {
            helm.args(["--set", value]);
        } else {
            helm.arg("--values").arg(chart::folder().join(value));
        }
    }
    let output = helm.output().await.context("helm")?;
    let _ = std::fs::remove_dir_all(home);
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Objects by kind, namespace and name, as text. Of the definitions, which have files of their own, only the metadata.
pub(super) async fn render(values: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut objects = BTreeMap::new();
    for document in template(values).await?.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("a rendered object")?;
        if !object.is_object() {
            continue;
        }
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
        let key = format!("{} {} {}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
        let mut lines = String::new();
        let definition = object["kind"] == "CustomResourceDefinition";
        let shown = document.trim().lines().take_while(|line| !(definition && *line == "spec:"));
        for line in shown.filter(|line| *line != "---") {
            let _ = writeln!(lines, "{}", line.trim_end());
        }
        ensure!(objects.insert(key.clone(), lines).is_none(), "{key} is rendered twice");
    }
    Ok(objects)
}

#[tokio::test]
async fn the_rendered_chart_is_the_one_that_was_looked_at() {
    let folder: PathBuf = chart::folder().join("tests/golden");
    let plain = render(&[]).await.unwrap();
    let mut stale = Vec::new();
    for (name, values) in SETS.into_iter().filter(|(name, _)| KEPT.contains(name)) {
        let objects = render(values).await.context(name).unwrap();
        let mut text = format!(
            "# Rendered from charts/andreas; refresh it with: make generate WHAT=crds\n# Values: {values:?}\n"
        );
        for key in plain.keys().filter(|key| !objects.contains_key(*key)) {
            let _ = writeln!(text, "# Not here: {key}");
        }
        for (key, object) in &objects {
            if values.is_empty() || plain.get(key) != Some(object) {
                let _ = write!(text, "---\n{object}");
            }
        }
        let path = folder.join(format!("{name}.yaml"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(path.display().to_string());
        }
    }
    assert!(stale.is_empty(), "stale; refresh with: make generate WHAT=crds\n{}", stale.join("\n"));
}

#[tokio::test]
async fn helm_3_renders_the_same_bytes_as_helm_4() {
    let (third, fourth) = (
        andreas_testbed::built("helm3").await.unwrap().join("helm"),
        Programs::find().await.unwrap().path("helm"),
    );
    for (name, values) in SETS {
        let texts = [
            template_by(&third, "v1.36.4", values).await.context(name).unwrap(),
            template_by(&fourth, "v1.36.4", values).await.context(name).unwrap(),
        ];
        assert!(texts[0] == texts[1], "{name}");
        assert!(texts[0].contains("kind: Deployment"), "{name}");
    }
}

/// helm gives the condition of a chart's part to that part too.
#[tokio::test]
async fn a_chart_may_hold_this_one_on_a_condition() {
    let parent = tempfile::tempdir().unwrap();
    let needs =
        serde_json::json!({"name": "andreas", "version": ">=0.0.0-0", "condition": "andreas.enabled"});
    let about = serde_json::json!({"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [needs]});
    std::fs::write(parent.path().join("Chart.yaml"), about.to_string()).unwrap();
    std::fs::create_dir(parent.path().join("charts")).unwrap();
    std::os::unix::fs::symlink(chart::folder(), parent.path().join("charts/andreas")).unwrap();
    for helm in [
        andreas_testbed::built("helm3").await.unwrap().join("helm"),
        Programs::find().await.unwrap().path("helm"),
    ] {
        for (value, installed) in [("true", true), ("null", true), ("false", false)] {
            let values = [&*format!("andreas.enabled={value}"), "global.region=eu"];
            let text = template_of(&helm, parent.path(), "v1.36.4", &values).await.unwrap();
            assert_eq!(text.contains("kind: Deployment"), installed, "{}: {value}", helm.display());
        }
    }
}

/// A setting ends when no request has come for its time: with one request in it, a late one would do.
#[tokio::test]
async fn an_interval_in_which_settings_would_end_is_refused() {
    let error = template(&["agent.interval=2001,agent.setterTtl=4"]).await.expect_err("a refusal");
    let said = format!("{error:#}");
    assert!(said.contains("agent.interval (2001 ms)") && said.contains("agent.setterTtl (4 s)"), "{said}");
    for fitting in ["agent.interval=2000,agent.setterTtl=4", "agent.interval=20000,agent.observe=true"] {
        template(&[fitting]).await.context(fitting).unwrap();
    }
}

/// A refusal names the value; what is right reaches both setters.
#[tokio::test]
async fn locked_clocks_are_given_to_the_setters_and_wrong_ones_are_refused() {
    for wrong in
        ["A100=1800\\,210", "A100=1800", "A100=1\\,2\\,3", "A100=0\\,0", "A100=-1\\,5", "A 100=210\\,1800"]
    {
        let error = template(&[&format!("agent.lockedClocks.{wrong}")]).await.expect_err(wrong);
        assert!(format!("{error:#}").contains("lockedClocks"), "{wrong}: {error:#}");
    }
    let values = [r"agent.lockedClocks.NVIDIA-A100-SXM4-80GB=210\,1200", r"agent.lockedClocks.\*=0\,1800"];
    let text = template(&values).await.unwrap();
    for flag in ["--locked-clocks=NVIDIA-A100-SXM4-80GB=210,1200", "--locked-clocks=*=0,1800"] {
        assert_eq!(text.matches(&format!("\"{flag}\"")).count(), 2, "{flag}");
    }
}

/// The agent holds the driver open: it has to leave a node whose driver the GPU operator replaces, whichever label chose the node.
#[tokio::test]
async fn agents_leave_nodes_whose_driver_is_replaced() {
    let objects = render(&[]).await.unwrap();
    let (_, agent) = objects.iter().find(|(key, _)| key.starts_with("DaemonSet ")).expect("the agents");
    let agent: Value = serde_saphyr::from_str(agent).unwrap();
    let terms = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = agent.pointer(terms).and_then(Value::as_array).expect("terms");
    assert_eq!(terms.len(), 6);
    for term in terms {
        for (key, value) in [
            ("nvidia.com/gpu.deploy.dcgm-exporter", "paused-for-driver-upgrade"),
            ("nvidia.com/gpu.deploy.dcgm-exporter", "paused-for-mig-change"),
            ("nvidia.com/gpu.deploy.client", "paused-for-driver-upgrade"),
            ("nvidia.com/gpu.deploy.client", "paused-for-mig-change"),
            ("andreas.dev/agent", "off"),
        ] {
            let all = term["matchExpressions"].as_array().expect("expressions");
            let not_in = |one: &&Value| one["key"] == key && one["operator"] == "NotIn";
            let values = all.iter().find(not_in).and_then(|one| one["values"].as_array());
            assert!(values.is_some_and(|values| values.iter().any(|one| one == value)), "{key}: {term}");
        }
    }
}

/// The registry has images for vX.Y.Z alone. Vendors add to their clusters' version, and Argo CD leaves the patch out.
#[tokio::test]
async fn the_image_of_kube_scheduler_is_one_that_exists() {
    for (version, tag) in [
        ("v1.36.4", "v1.36.4"),
        ("v1.34.1-gke.1057000", "v1.34.1"),
        ("v1.35.2-eks-ab12cd3", "v1.35.2"),
        ("v1.34.1+k3s1", "v1.34.1"),
        ("v1.34", "v1.34.0"),
        ("1.35", "v1.35.0"),
    ] {
        let text = template_for(version, &[]).await.unwrap();
        let image = format!("image: registry.k8s.io/kube-scheduler:{tag}\n");
        assert!(text.contains(&image), "{version} does not give {image}");
    }
}

/// What asks the cluster, the clock or chance would differ between a preview and the installation, or between two synchronisations.
#[tokio::test]
async fn the_chart_renders_the_same_bytes_twice_and_asks_no_cluster() {
    for (name, values) in SETS {
        let (first, second) = (template(values).await.unwrap(), template(values).await.unwrap());
        assert!(first == second, "{name} renders differently the second time");
        assert!(!first.contains("kind: Secret"), "{name} renders a Secret");
    }
    let changing = ["lookup", "genCA", "genSignedCert", "genPrivateKey", "randAlpha", "uuidv4", "now"];
    let mut folders = vec![chart::folder().join("templates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // No object: what helm prints once, after an installation.
            if path.ends_with("NOTES.txt") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let actions = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            for word in actions.filter(|action| !action.contains("/*")).flat_map(str::split_whitespace) {
                let word = word.trim_start_matches('(');
                assert!(!changing.contains(&word), "{}: {word}", path.display());
            }
        }
    }
}
