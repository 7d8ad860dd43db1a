//! Grafana's dashboards hold to the rules of Grafana's own linter (github.com/grafana/dashboard-linter), which are written
//! anew here: Go's module proxy answers 403 for every version of that module, so that it cannot be built.
//!
//! | rule of the linter | here |
//! |---|---|
//! | `template-datasource-rule`, `panel-datasource-rule`, `panel-title-description-rule`, `panel-units-rule` | as there |
//! | `panel-no-targets-rule`, `template-on-time-change-reload-rule`, `uneditable-dashboard` | as there |
//! | `target-promql-rule`, `template-label-promql-rule` | promtool reads every query |
//! | `target-rate-interval-rule` | as there; a fixed range of an hour or more, and `$__range`, are meant |
//! | `target-counter-agg-rule` | as there |
//! | `template-job-rule`, `template-instance-rule`, `target-job-rule`, `target-instance-rule` | not: our metrics have names of their own, and a board shows all replicas |

use std::path::Path;

use andreas_api::names::LABEL_JOB;
use andreas_e2e::scrape::{self, panels};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

fn boards() -> Result<Vec<(String, Value)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/dashboards");
    let mut boards = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        boards.push((name.clone(), serde_json::from_str(&std::fs::read_to_string(&path)?).context(name)?));
    }
    boards.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(boards)
}

fn list<'a>(of: &'a Value, pointer: &str) -> &'a [Value] {
    of.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Queries of a board with the place where each stands: panels, annotations, variables.
fn queries(board: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<(String, String)> = panels(board)
        .flat_map(|panel| list(panel, "/targets").iter().map(|t| (text(&panel["title"]), text(&t["expr"]))))
        .collect();
    let annotations = list(board, "/annotations/list").iter();
    found.extend(annotations.map(|a| (text(&a["name"]), text(&a["expr"]))));
    for variable in list(board, "/templating/list").iter().filter(|v| v["type"] == "query") {
        let definition = text(&variable["definition"]);
        let inside = definition.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", "));
        found.push((
            text(&variable["name"]),
            inside.map(|(selector, _)| selector.to_owned()).unwrap_or_default(),
        ));
    }
    found
}

/// What stands for Grafana's variables in a query.
fn filled(query: &str) -> String {
    let values = [("$__rate_interval", "2m"), ("$__range", "6h"), ("$__interval", "1m")];
    let query = values.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
    let mut parts = query.split('$');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let name: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // `$1` is a part of label_replace's pattern.
        if name.chars().all(|c| c.is_ascii_digit()) {
            done + "$" + part
        } else {
            done + ".*" + &part[name.len()..]
        }
    })
}

/// Ranges `[...]` after metrics within a function such as `rate(`.
fn ranges<'a>(query: &'a str, function: &str) -> Vec<&'a str> {
    let calls = query
        .match_indices(function)
        .filter(|(at, _)| !query[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
    calls
        .filter_map(|(at, _)| query[at..].split_once('[')?.1.split_once(']').map(|(range, _)| range))
        .collect()
}

#[test]
fn boards_hold_to_the_rules_of_grafanas_linter() -> Result<()> {
    let mut panels_seen = 0;
    for (file, board) in boards()? {
        ensure!(board["editable"] == false, "{file}: edits of a board that files bring are lost");
        let variables = list(&board, "/templating/list");
        ensure!(
            variables.first().is_some_and(|v| v["type"] == "datasource" && v["query"] == "prometheus"),
            "{file}"
        );
        for variable in variables.iter().filter(|v| v["type"] == "query") {
            ensure!(variable["refresh"] == 2, "{file}: {} is not read again with the time", variable["name"]);
        }
        // What one looks at; the rest is a click away.
        let open = list(&board, "/panels").iter().filter(|panel| panel["type"] != "row").count();
        let owners = ["andreas-jobs.json", "andreas-owner.json"].contains(&file.as_str());
        ensure!(owners || open <= 12, "{file}: {open} panels are open");
        for panel in panels(&board) {
            panels_seen += 1;
            let title = panel["title"].as_str().unwrap_or_default();
            let place = format!("{file}: {title:?}");
            ensure!(
                !title.is_empty() && !panel["description"].as_str().unwrap_or_default().is_empty(),
                "{place}"
            );
            ensure!(panel["datasource"]["uid"] == "${datasource}", "{place}: data source");
            ensure!(
                panel.pointer("/fieldConfig/defaults/unit").is_some_and(Value::is_string),
                "{place}: unit"
            );
            ensure!(!list(panel, "/targets").is_empty(), "{place}: no query");
        }
        for (title, query) in queries(&board) {
            for range in ranges(&query, "rate(") {
                ensure!(["$__rate_interval", "1h"].contains(&range), "{file}: {title}: rate over [{range}]");
            }
            // Counters grow for ever and begin anew with their program.
            let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            // A variable only takes labels of the series.
            let variable = variables.iter().any(|variable| variable["name"] == title.as_str());
            let counters = words.filter(|word| word.starts_with("andreas_") && word.ends_with("_total"));
            for counter in counters.filter(|_| !variable) {
                let grows = ["rate(", "increase(", "changes("]
                    .iter()
                    .any(|f| query.contains(&format!("{f}{counter}")));
                let zero = query.contains(&format!("0 * sum({counter})"));
                ensure!(grows || zero, "{file}: {title}: {counter} as it is");
            }
        }
    }
    ensure!(panels_seen > 100, "{panels_seen} panels");
    Ok(())
}

#[test]
fn data_links_lead_to_boards() -> Result<()> {
    let boards = boards()?;
    for link in boards.iter().flat_map(|(_, board)| links(board)) {
        let uid: String =
            link.trim_start_matches("/d/").chars().take_while(|c| *c != '?' && *c != '/').collect();
        ensure!(boards.iter().any(|(file, _)| *file == format!("{uid}.json")), "no board for {link}");
    }
    Ok(())
}

/// Addresses of data links to boards, anywhere in a value.
fn links(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if text.starts_with("/d/") => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(links).collect(),
        Value::Object(fields) => fields.values().flat_map(links).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn promtool_reads_every_query_of_every_board() -> Result<()> {
    let mut rules = Vec::new();
    for (_, board) in boards()? {
        let all = queries(&board);
        rules.extend(all.iter().map(|(_, query)| json!({"record": "board:query", "expr": filled(query)})));
    }
    ensure!(rules.len() > 150, "{} queries", rules.len());
    // Equal names would be told from each other by a label.
    for (n, rule) in rules.iter_mut().enumerate() {
        rule["labels"] = json!({"number": n.to_string()});
    }
    let file = std::env::temp_dir().join(format!("andreas-boards-{}.yaml", std::process::id()));
    std::fs::write(&file, json!({"groups": [{"name": "boards", "rules": rules}]}).to_string())?;
    let promtool = scrape::programs().await?.join("promtool");
    let done = Command::new(promtool).args(["check", "rules", "--lint=none"]).arg(&file).output().await;
    std::fs::remove_file(&file)?;
    let done = done?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// Given the values for kube-state-metrics; when the board of job owners and the objects of the API are read; then the
/// board asks for series that they make, and they take fields that there are.
#[test]
fn the_owners_board_asks_for_series_of_kube_state_metrics() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let values: Value = serde_saphyr::from_str(&std::fs::read_to_string(
        root.join("deploy/kube-state-metrics/values.yaml"),
    )?)?;
    let resource = values.pointer("/customResourceState/config/spec/resources/0").context("a resource")?;
    let prefix = resource["metricNamePrefix"].as_str().context("a prefix")?;
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(
        root.join("charts/andreas/files/crds/andreas.dev_trainingjobs.yaml"),
    )?)?;
    let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").context("a schema")?;
    let mut shown = Vec::new();
    for metric in list(resource, "/metrics") {
        let name = metric["name"].as_str().context("a name")?;
        shown.push(format!("{prefix}_{name}"));
        let each = &metric["each"];
        let mut paths: Vec<&Value> =
            ["/gauge/path", "/stateSet/path"].iter().filter_map(|p| each.pointer(p)).collect();
        paths.extend(
            each.pointer("/info/labelsFromPath")
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(|m| m.values()),
        );
        ensure!(!paths.is_empty(), "{name} has no path");
        for path in paths {
            let mut at = schema;
            let words: Vec<&str> = path.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if words.first() == Some(&"metadata") {
                continue;
            }
            for word in &words {
                at = at
                    .pointer(&format!("/properties/{word}"))
                    .with_context(|| format!("{name}: no field {words:?}"))?;
            }
        }
    }
    let (_, board) =
        boards()?.into_iter().find(|(file, _)| file == "andreas-owner.json").context("the board")?;
    let mut asked = 0;
    for (title, query) in queries(&board) {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for series in words.filter(|word| word.starts_with("kube_trainingjob_")) {
            asked += 1;
            ensure!(shown.iter().any(|name| name == series), "{title}: no series {series}");
        }
    }
    ensure!(asked > 30, "{asked}");
    Ok(())
}

/// The label of a series that kube-state-metrics makes of a pod's label.
fn label_of_series(label: &str) -> String {
    format!("label_{}", label.replace(|c: char| !c.is_ascii_alphanumeric(), "_"))
}

/// Given pods of a TrainingJob, of an adopted Job and of nobody, and what dcgm-exporter measures of their GPUs; when the board of job
/// owners asks for it; then each job has its own, whatever its pods are called.
#[tokio::test]
async fn the_owners_board_finds_the_gpus_of_a_job_by_its_pods_label() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let values: Value = serde_saphyr::from_str(&std::fs::read_to_string(
        root.join("deploy/kube-state-metrics/values.yaml"),
    )?)?;
    let shown = list(&values, "/metricLabelsAllowlist");
    ensure!(shown.iter().any(|labels| *labels == format!("pods=[{LABEL_JOB}]")), "{shown:?}");
    let (_, board) =
        boards()?.into_iter().find(|(file, _)| file == "andreas-owner.json").context("the board")?;
    let measured: Vec<String> =
        queries(&board).iter().filter(|(_, q)| q.contains("DCGM_")).map(|(_, q)| filled(q)).collect();
    ensure!(measured.len() == 3, "{measured:?}");

    let mut series = Vec::new();
    for (pod, job, gpus) in
        [("bert-1-0", "bert", 2), ("bert-1-1", "bert", 2), ("tune-0-x1y2z", "job-tune", 1), ("web-0", "", 1)]
    {
        let of_job = if job.is_empty() {
            String::new()
        } else {
            format!(", {}=\"{job}\"", label_of_series(LABEL_JOB))
        };
        let pod = format!("namespace=\"team\", pod=\"{pod}\"");
        series.push(json!({"series": format!("kube_pod_labels{{{pod}{of_job}}}"), "values": "1"}));
        for gpu in 0..gpus {
            for name in ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"] {
                let gpu = format!("{name}{{{pod}, UUID=\"{gpu}\"}}");
                series.push(json!({"series": gpu, "values": "50"}));
            }
        }
    }
    // A mean of percent, and sums of two pods with two GPUs each, and of one with one.
    let wanted = |query: &str| if query.starts_with("avg") { (0.5, 0.5) } else { (200.0, 50.0) };
    let tests = measured.iter().map(|query| {
        let (bert, tune) = wanted(query);
        let sample = |job: &str, value: f64| json!({"labels": format!("{{job_name=\"{job}\"}}"), "value": value});
        json!({"expr": query, "eval_time": "0m", "exp_samples": [sample("bert", bert), sample("job-tune", tune)]})
    });
    let tests: Vec<Value> = tests.collect();
    answers("gpus", json!({"interval": "1m", "input_series": series, "promql_expr_test": tests})).await
}

/// Given a job, and kube-state-metrics with values of an earlier build, which show no share of hosts; when the board of job owners asks
/// for energy and cost; then it has those of the GPUs. With the share it has both.
#[tokio::test]
async fn the_owners_board_shows_energy_and_cost_without_the_share_of_hosts() -> Result<()> {
    let (_, board) =
        boards()?.into_iter().find(|(file, _)| file == "andreas-owner.json").context("the board")?;
    let asked: Vec<String> = queries(&board)
        .iter()
        .filter(|(_, q)| q.contains("_host_energy_joules") || q.contains("_host_cost_micros"))
        .map(|(_, q)| filled(q))
        .collect();
    ensure!(asked.len() == 5, "{asked:?}");
    let labels = "job_namespace=\"team\", job_name=\"bert\"";
    for (name, hosts) in [("without", 0), ("with", 500)] {
        let mut shown = vec![("energy_joules", 1_000), ("energy_cost_micros", 1_000)];
        if hosts > 0 {
            shown.extend([("host_energy_joules", hosts), ("host_cost_micros", hosts)]);
        }
        let series = shown.iter().map(|(name, value)| {
            json!({"series": format!("kube_trainingjob_{name}{{{labels}}}"), "values": value.to_string()})
        });
        let series: Vec<Value> = series.collect();
        let tests = asked.iter().map(|query| {
            let all = f64::from(1_000 + hosts);
            let value = if query.contains("_micros") { all / 1e6 } else { all };
            let labels = match query {
                query if query.contains("max by (job_namespace, job_name)") => format!("{{{labels}}}"),
                query if query.contains("max by (job_name)") => "{job_name=\"bert\"}".to_owned(),
                _ => "{}".to_owned(),
            };
            json!({"expr": query, "eval_time": "0m", "exp_samples": [{"labels": labels, "value": value}]})
        });
        let tests: Vec<Value> = tests.collect();
        answers(name, json!({"interval": "1m", "input_series": series, "promql_expr_test": tests})).await?;
    }
    Ok(())
}

/// Prometheus answers the queries of a test of promtool as it wants.
async fn answers(name: &str, test: Value) -> Result<()> {
    let file = std::env::temp_dir().join(format!("andreas-owner-{name}-{}.yaml", std::process::id()));
    std::fs::write(
        &file,
        json!({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}).to_string(),
    )?;
    let promtool = scrape::programs().await?.join("promtool");
    let done = Command::new(promtool).args(["test", "rules"]).arg(&file).output().await;
    std::fs::remove_file(&file)?;
    let done = done?;
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(done.status.success(), "{}", text.concat());
    Ok(())
}
