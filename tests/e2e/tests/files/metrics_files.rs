//! Given the lists of metrics in the programs' code; when documentation, dashboards, alerts and runbooks are compared with
//! them; then each names only metrics that there are, and each alert has its page. No cluster is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use andreas_e2e::{chart, scrape};
use andreas_runtime::certificates::CERTIFICATES;
use andreas_runtime::metrics::{Kind, Metric, PROCESS};
use andreas_runtime::testing::ill_named;
use andreas_runtime::watch::WATCHES;
use andreas_testbed::Programs;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The programs and the metrics that only they have.
fn programs() -> [(&'static str, &'static str, Vec<Metric>); 4] {
    let own = |all: Vec<Metric>| {
        all.into_iter()
            .filter(|metric| ![WATCHES, CERTIFICATES, PROCESS].iter().any(|shared| shared.contains(metric)))
            .collect()
    };
    [
        (
            "Operator",
            "`andreas-operator`, port `metrics` (9090)",
            own(andreas_operator::metrics::list::all()),
        ),
        (
            "Extender",
            "`andreas-extender`, beside kube-scheduler, port `metrics` (9090)",
            own(andreas_extender::metrics::all()),
        ),
        (
            "Node agent",
            "`andreas-node-agent`, on each GPU node, port `metrics` (9090)",
            own(andreas_node_agent::agent::metrics::all()),
        ),
        (
            "Node power",
            "`andreas-node-power`, port `metrics` (9090)",
            own(andreas_node_power::metrics::all()),
        ),
    ]
}

fn every_metric() -> Vec<Metric> {
    let own = programs().into_iter().flat_map(|(_, _, own)| own);
    own.chain([WATCHES, CERTIFICATES, PROCESS].concat()).collect()
}

fn table(text: &mut String, metrics: &[Metric]) {
    *text += "| name | type | unit | labels | what it says |\n|---|---|---|---|---|\n";
    for metric in metrics {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let unit = metric.unit().unwrap_or("").replace("timestamp_seconds", "seconds since 1970");
        let (name, kind, help) = (metric.name, metric.kind.as_str(), metric.help);
        let _ = writeln!(text, "| `{name}` | {kind} | {unit} | {} | {help} |", labels.join(", "));
    }
}

fn documentation() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         <!-- Written from the programs' code; refresh it with: make generate WHAT=metrics-docs -->\n\n\
         Each program answers `GET /metrics` in plain HTTP: in OpenMetrics or, where that is not asked for,\n\
         in Prometheus' older text format. A histogram's series end with `_bucket`, `_sum` and `_count`.\n\n\
         Labels have values from closed or bounded sets. At 10,000 jobs the operator has fewer than 5,000\n\
         series. No name of a job or a pod is among them. A tenant's namespace is `job_namespace`;\n\
         namespaces and GPU types beyond a bound are `_other`. The node of an agent's metrics is Prometheus'\n\
         own label `node`, which the scrape configuration gives.\n\n\
         The replica that leads shows the gauges of the operator. Dashboards are in\n\
         [`deploy/dashboards`](../deploy/dashboards), alerts in\n\
         [`deploy/prometheus/alerts.yaml`](../deploy/prometheus/alerts.yaml), each with [its\n\
         page](runbooks/README.md). The chart brings both, and what discovers the programs: `monitoring` in\n\
         its values.\n",
    );
    for (title, place, metrics) in programs() {
        let _ = write!(text, "\n## {title}\n\n{place}\n\n");
        table(&mut text, &metrics);
    }
    text += "\n## Watches\n\nOf every program, for each kind it watches.\n\n";
    table(&mut text, WATCHES);
    text += "\n## Certificates\n\nOf the operator.\n\n";
    table(&mut text, CERTIFICATES);
    text += "\n## Process\n\nOf every program.\n\n";
    table(&mut text, PROCESS);
    text
}

#[test]
fn the_documentation_is_that_of_the_code() -> Result<()> {
    assert_eq!(ill_named(&every_metric()), Vec::<String>::new());
    let path = root().join("docs/metrics.md");
    let wanted = documentation();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted)?;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    ensure!(found == wanted, "docs/metrics.md is stale; refresh it with: make generate WHAT=metrics-docs");
    Ok(())
}

/// Words in a text that look like metrics, with the suffixes of histograms taken off.
fn named(text: &str) -> BTreeSet<String> {
    let histograms: BTreeSet<&str> =
        every_metric().iter().filter(|m| m.kind == Kind::Histogram).map(|m| m.name).collect();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("andreas_") || word.starts_with("process_"));
    ours.map(|word| {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part));
        stem.filter(|stem| histograms.contains(stem)).unwrap_or(word).to_owned()
    })
    .collect()
}

fn unknown(text: &str) -> Vec<String> {
    let known: BTreeSet<&str> = every_metric().iter().map(|metric| metric.name).collect();
    named(text).into_iter().filter(|name| !known.contains(name.as_str())).collect()
}

fn files(folder: &Path, end: &str) -> Result<BTreeMap<String, String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(end) {
            files.insert(name, std::fs::read_to_string(&path)?);
        }
    }
    ensure!(!files.is_empty(), "no {end} in {}", folder.display());
    Ok(files)
}

#[test]
fn dashboards_name_metrics_that_there_are_and_can_be_imported_anywhere() -> Result<()> {
    let dashboards = files(&root().join("deploy/dashboards"), ".json")?;
    assert_eq!(dashboards, files(&chart::folder().join("files/dashboards"), ".json")?, "one source");
    let mut used = BTreeSet::new();
    for (file, text) in &dashboards {
        let board: Value = serde_json::from_str(text).with_context(|| file.clone())?;
        ensure!(unknown(text).is_empty(), "{file}: no such metrics: {:?}", unknown(text));
        used.extend(named(text));
        let uid = board["uid"].as_str().unwrap_or_default();
        ensure!(*file == format!("{uid}.json") && board["title"].is_string(), "{file}: uid {uid}");
        ensure!(
            board["tags"][0] == "andreas" && board["templating"]["list"][0]["type"] == "datasource",
            "{file}"
        );
        let ids: Vec<i64> = scrape::panels(&board).filter_map(|panel| panel["id"].as_i64()).collect();
        let different: BTreeSet<&i64> = ids.iter().collect();
        ensure!(!ids.is_empty() && different.len() == ids.len(), "{file}: ids of panels are not unique");
        let variables: BTreeSet<&str> = board["templating"]["list"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v["name"].as_str())
            .collect();
        for panel in scrape::panels(&board) {
            let title = panel["title"].as_str().unwrap_or_default();
            for target in panel["targets"].as_array().context("no targets")? {
                let query = target["expr"].as_str().unwrap_or_default();
                let asked = query.split('$').skip(1).map(|rest| {
                    rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default()
                });
                // `$1` is a part of label_replace's pattern.
                let asked = asked.filter(|name| !name.chars().all(|c| c.is_ascii_digit()));
                for variable in asked.filter(|name| !name.starts_with("__")) {
                    ensure!(variables.contains(variable), "{file}: {title}: no variable {variable}");
                }
            }
        }
    }
    // What is measured and shown nowhere is either missing on a dashboard or measured in vain.
    let alerts = named(&std::fs::read_to_string(scrape::alerts())?);
    let nowhere: Vec<&str> = every_metric()
        .iter()
        .map(|metric| metric.name)
        .filter(|name| !used.contains(*name) && !alerts.contains(*name))
        .collect();
    ensure!(nowhere.is_empty(), "on no dashboard and in no alert: {nowhere:?}");
    Ok(())
}

#[test]
fn each_alert_has_its_page_and_each_page_its_alert() -> Result<()> {
    let text = std::fs::read_to_string(root().join("deploy/prometheus/alerts.yaml"))?;
    ensure!(unknown(&text).is_empty(), "no such metrics: {:?}", unknown(&text));
    let rules: Value = serde_saphyr::from_str(&text)?;
    let groups = rules["groups"].as_array().context("no groups")?;
    let mut alerts = BTreeMap::new();
    for rule in groups.iter().filter_map(|group| group["rules"].as_array()).flatten() {
        let name = rule["alert"].as_str().context("a rule that is no alert")?;
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        ensure!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        ensure!(url == format!("docs/runbooks/{name}.md"), "{name}: {url}");
        ensure!(
            rule["annotations"]["summary"].is_string() && rule["annotations"]["description"].is_string(),
            "{name}"
        );
        alerts.insert(format!("{name}.md"), severity.to_owned());
    }
    let mut pages = files(&root().join("docs/runbooks"), ".md")?;
    let index = pages.remove("README.md").context("no list of runbooks")?;
    let (wanted, found): (BTreeSet<_>, BTreeSet<_>) = (alerts.keys().collect(), pages.keys().collect());
    ensure!(wanted == found, "alerts {wanted:?}, pages {found:?}");
    for (file, page) in &pages {
        ensure!(unknown(page).is_empty(), "{file}: no such metrics: {:?}", unknown(page));
        for part in ["\n## What it means\n", "\n## How to check\n", "\n## What to do\n"] {
            ensure!(page.contains(part), "{file}: no part {part}");
        }
        let severity = &alerts[file];
        ensure!(page.contains(&format!("Severity: {severity}.")), "{file}: {severity}");
        ensure!(index.contains(&format!("({file}) | {severity} |")), "{file} is not in the list");
    }
    Ok(())
}

/// Objects of the chart with these values, by kind and name.
async fn rendered(template: &str, values: &str) -> Result<BTreeMap<String, Value>> {
    let helm = Programs::find().await?.path("helm");
    let mut command = Command::new(helm);
    command.args(["template", "andreas"]).arg(chart::folder()).args(["--namespace", "andreas-system"]);
    command.args(["--show-only", template, "--set", values]);
    // Nothing of the user's own settings.
    let home = std::env::temp_dir().join(format!("andreas-helm-{}", std::process::id()));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    let done = command.output().await;
    let _ = std::fs::remove_dir_all(home);
    let done = done?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(done.stdout)?)?;
    let named = objects
        .into_iter()
        .filter(Value::is_object)
        .map(|object| (object["metadata"]["name"].as_str().unwrap_or_default().to_owned(), object));
    Ok(named.collect())
}

/// Given the chart with dashboards and alerts switched on; when it is rendered; then Grafana's sidecar gets the dashboards to the
/// letter, and promtool accepts the rules, without those of what is not installed or not wanted.
#[tokio::test]
async fn the_chart_carries_dashboards_and_alerts() -> Result<()> {
    let maps = rendered("templates/monitoring/dashboards.yaml", "monitoring.dashboards.enabled=true").await?;
    let dashboards = files(&chart::folder().join("files/dashboards"), ".json")?;
    ensure!(maps.len() == dashboards.len(), "{:?}", maps.keys());
    for (file, text) in &dashboards {
        let map = maps.values().find(|map| map["data"][file].is_string()).with_context(|| file.clone())?;
        ensure!(map["data"][file].as_str() == Some(text.trim_end()), "{file} is not as it was");
        ensure!(map["metadata"]["labels"]["grafana_dashboard"] == "1", "{}", map["metadata"]);
        // What etcd takes, with room for the object around it.
        ensure!(text.len() < 500_000, "{file} is {} bytes", text.len());
    }
    let values = "monitoring.rules.enabled=true,monitoring.rules.runbookUrl=https://wiki.example/andreas/,\
                  monitoring.rules.disabled={AndreasPlansFail},scheduler.enabled=false";
    let rules = rendered("templates/monitoring/rules.yaml", values).await?;
    let spec = &rules["andreas"]["spec"];
    let text = spec.to_string();
    ensure!(!text.contains("andreas-extender") && !text.contains("AndreasPlansFail"), "{text}");
    ensure!(text.contains("https://wiki.example/andreas/AndreasNoPlans.md"), "{text}");
    let file = std::env::temp_dir().join(format!("andreas-rules-{}.yaml", std::process::id()));
    std::fs::write(&file, &text)?;
    let promtool = scrape::programs().await?.join("promtool");
    let done = Command::new(promtool)
        .args(["check", "rules", "--lint=all", "--lint-fatal"])
        .arg(&file)
        .output()
        .await;
    std::fs::remove_file(&file)?;
    let done = done?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let said = String::from_utf8(done.stdout)?;
    // All alerts, without one, the three of the extender and that of node-power.
    let alerts = std::fs::read_to_string(scrape::alerts())?.matches("- alert: ").count();
    ensure!(said.contains(&format!("{} rules found", alerts - 5)), "{said}");
    // Without an operator nobody would lead, for ever.
    let values = "monitoring.rules.enabled=true,operator.enabled=false";
    let rules = rendered("templates/monitoring/rules.yaml", values).await?;
    let groups = rules["andreas"]["spec"]["groups"].as_array().context("groups")?;
    let names: Vec<_> = groups.iter().filter_map(|group| group["name"].as_str()).collect();
    ensure!(names == ["andreas-certificates", "andreas-extender", "andreas-agent"], "{names:?}");
    Ok(())
}

#[tokio::test]
async fn each_alert_fires_on_its_trouble_and_is_silent_without() -> Result<()> {
    let promtool = scrape::programs().await?.join("promtool");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/alerts.test.yaml");
    for args in [["check", "rules", "--lint=all", "--lint-fatal"].as_slice(), &["test", "rules"]] {
        let file = if args[0] == "check" { scrape::alerts() } else { tests.clone() };
        let done = Command::new(&promtool).args(args).arg(file).output().await?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        ensure!(done.status.success(), "promtool {args:?}: {said}");
    }
    Ok(())
}
