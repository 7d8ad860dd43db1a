//! Given a cluster on which jobs of several kinds run; when a real Prometheus scrapes it; then what is exposed has nothing
//! that promtool finds fault with, every query of every dashboard is answered, with data where there can be some here, every alert can be
//! evaluated, and so can every query of the runbooks.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::chart;
use andreas_e2e::cluster::{A100, Cluster, Options, T4, a100, short_runs, t4};
use andreas_e2e::fenced;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::scrape::{self, Scrape};
use andreas_runtime::testing::classic;
use andreas_testbed::wait::until;
use andreas_testbed::{PortLease, Process, ProcessSpec};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long a query may stay empty: some scrapes, and what happens on the cluster meanwhile.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);

fn policy() -> Value {
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": 20_000});
    policy["rest"] = json!({"after": "2s"});
    policy["gpuTypes"] = json!([
        {"name": A100, "idleWatts": 54, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 500},
        {"name": T4, "idleWatts": 10, "maxWatts": 70, "hostIdleWatts": 0, "hostBusyWatts": 150},
    ]);
    policy
}

/// A Prometheus on the testbed.
struct Prometheus {
    process: Process,
    url: String,
    _port: std::sync::Arc<PortLease>,
}

impl Prometheus {
    async fn start(cluster: &Cluster, scrape: &Scrape, program: &Path) -> Result<Self> {
        let port = std::sync::Arc::new(PortLease::take()?);
        let address = format!("127.0.0.1:{}", port.port());
        let config = scrape.write(cluster, 1)?;
        let spec = ProcessSpec::new("prometheus", program)
            .args(["--config.file", &config.display().to_string()])
            .args([
                "--storage.tsdb.path",
                &cluster.testbed.data_dir().join("prometheus").display().to_string(),
            ])
            .args(["--web.listen-address", &address])
            .holding(port.clone());
        let process = cluster.testbed.spawn(spec)?;
        process.wait_for_http(&address, "/-/ready", DEFAULT_TIMEOUT).await?;
        Ok(Self { process, url: format!("http://{address}"), _port: port })
    }

    /// What `/api/v1/<path>` says to these parameters.
    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let url = format!("{}/api/v1/{path}", self.url);
        let parameters: Vec<(String, String)> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let text = tokio::task::spawn_blocking(move || get(&url, &parameters, "*/*")).await??;
        let mut answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer["data"].take())
    }

    /// Whether a query has a value that is a number now.
    async fn has_data(&self, query: &str) -> Result<bool> {
        let data = self.ask("query", &[("query", query)]).await.with_context(|| query.to_owned())?;
        let values = data["result"].as_array().context("no result")?;
        let number = |sample: &Value| {
            sample["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).is_some_and(f64::is_finite)
        };
        Ok(values.iter().any(number))
    }
}

fn get(url: &str, parameters: &[(String, String)], accept: &str) -> Result<String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(30)))
        .http_status_as_error(false)
        .build();
    let mut request = ureq::Agent::new_with_config(config).get(url).header("Accept", accept);
    for (name, value) in parameters {
        request = request.query(name, value);
    }
    Ok(request.call()?.body_mut().read_to_string()?)
}

/// Jobs that end well and badly, on time and late, that run and that wait.
fn work() -> Vec<Job> {
    let family = |name: &str| job(name).epochs(10, 0.3).profile("family");
    vec![
        family("first"),
        family("late").spec("deadlineAfter", json!("2s")),
        job("fails").spec("retries", json!(0)).env("TRAINER_FAIL_AT", 0.5).env("TRAINER_EXIT_CODE", 9),
        job("long").epochs(600, 1.0).gpus(4, 1).spec("gpus", json!({"min": 4, "max": 4, "types": [A100]})),
        job("waits")
            .epochs(10, 1.0)
            .gpus(8, 2)
            .spec("gpus", json!({"min": 8, "max": 8, "maxNodes": 2, "types": [A100]})),
        job("free").without("deadlineAfter").epochs(20, 0.5),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_answers_every_panel_of_every_dashboard() -> Result<()> {
    let programs = scrape::programs().await?;
    let options = Options {
        name: "metrics".into(),
        groups: vec![a100(2), t4(1)],
        policy: policy(),
        install: Some(json!({})),
        ..Options::default()
    };
    scenario(options, async |c| {
        let scrape = Scrape::of(c).await?;
        let counts: Vec<usize> = scrape.jobs.iter().map(|job| job.targets.len()).collect();
        ensure!(counts == [1, 1, 3], "operators, extenders, agents: {counts:?}");
        let prometheus = Prometheus::start(c, &scrape, &programs.join("prometheus")).await?;
        // Counters that rise before the first scrape have not risen for Prometheus.
        let query = "andreas_leader == 1 and on () andreas_extender_cache_ready == 1";
        until(query, QUERY_TIMEOUT, async || prometheus.has_data(query).await).await?;
        for each in work() {
            c.submit(&each).await?;
        }
        for name in ["first", "late"] {
            c.wait_for_phase(&job(name), Phase::Succeeded).await?;
        }
        c.wait_for_phase(&job("fails"), Phase::Failed).await?;
        // Their profile has observations now: the predictions for the next jobs use them.
        for name in ["second", "third"] {
            let next = job(name).epochs(10, 0.3).profile("family");
            c.submit(&next).await?;
            c.wait_for_phase(&next, Phase::Succeeded).await?;
        }
        promtool_finds_no_fault(&scrape.jobs, &programs.join("promtool")).await?;
        every_query_of_a_dashboard_is_answered(&prometheus).await?;
        every_alert_is_evaluated(&prometheus).await?;
        every_query_of_a_runbook_is_answered(&prometheus).await?;
        prometheus.process.stop().await;
        Ok(())
    })
    .await
}

async fn promtool_finds_no_fault(jobs: &[scrape::Job], promtool: &Path) -> Result<()> {
    for (address, _) in jobs.iter().flat_map(|job| &job.targets) {
        let url = format!("http://{address}/metrics");
        let text = tokio::task::spawn_blocking(move || get(&url, &[], "*/*")).await??;
        ensure!(text.contains("# TYPE andreas_build_info gauge"), "{text}");
        let mut child = Command::new(promtool)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        child.stdin.take().context("no pipe")?.write_all(classic(&text).as_bytes()).await?;
        let done = child.wait_with_output().await?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        ensure!(done.status.success() && said.trim().is_empty(), "promtool check metrics: {said}");
    }
    Ok(())
}

/// What a test bed with healthy whole GPUs and no meter of hosts has no samples of, and what nobody asks or causes here.
const NO_DATA_HERE: [&str; 7] = [
    " offset 7d",
    // No alert need be pending; whether all can be evaluated is asked below.
    "ALERTS{",
    "andreas_gpu_problem",
    "andreas_gpu_rest_effect_watts",
    "andreas_gpu_xid_errors_total",
    "andreas_predictor_refused_namespace_rows",
    "andreas_queries_total",
];

/// Series of programs that are not here: kube-state-metrics and DCGM. `make docs WHAT=pictures` draws the former.
const OTHER_PROGRAMS: [&str; 2] = ["kube_", "DCGM_"];

/// With data, but for those of [`NO_DATA_HERE`] and [`OTHER_PROGRAMS`].
async fn every_query_of_a_dashboard_is_answered(prometheus: &Prometheus) -> Result<()> {
    let (mut all, mut with_data) = (0, 0);
    let mut empty: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(chart::folder().join("files/dashboards"))? {
        let board: Value = serde_json::from_str(&std::fs::read_to_string(entry?.path())?)?;
        let values = variables(prometheus, &board).await?;
        for panel in scrape::panels(&board) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().context("no query")?;
                // A name may begin with another's: the longer one first.
                let longest_first = values.iter().rev();
                let query =
                    longest_first.fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
                // `$1` is a part of label_replace's pattern.
                let mut after = query.split('$').skip(1);
                let filled = after.all(|rest| rest.starts_with(|next: char| next.is_ascii_digit()));
                ensure!(filled, "not filled in: {query}");
                all += 1;
                if NO_DATA_HERE.iter().chain(&OTHER_PROGRAMS).any(|metric| query.contains(metric)) {
                    prometheus.ask("query", &[("query", &query)]).await.with_context(|| query.clone())?;
                } else {
                    with_data += 1;
                    empty.insert(query, format!("{}: {}", board["title"], panel["title"]));
                }
            }
        }
    }
    ensure!(with_data > 70, "data is wanted of {with_data} queries of {all}");
    println!("{all} queries of dashboards, {with_data} of them with data");
    // All get their time together.
    let all_have = async || {
        let queries: Vec<String> = empty.keys().cloned().collect();
        for query in queries {
            if prometheus.has_data(&query).await? {
                empty.remove(&query);
            }
        }
        Ok(empty.is_empty())
    };
    let waited = until("every query has data", QUERY_TIMEOUT, all_have).await;
    waited.with_context(|| format!("no data: {empty:#?}"))?;
    Ok(())
}

/// What Grafana puts in for a dashboard's variables when all values are chosen.
async fn variables(prometheus: &Prometheus, board: &Value) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::from([
        ("$__rate_interval".to_owned(), "2m".to_owned()),
        ("$__range".to_owned(), "5m".to_owned()),
    ]);
    for variable in board["templating"]["list"].as_array().into_iter().flatten() {
        let Some(query) = variable["definition"].as_str() else { continue };
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inside.and_then(|inside| inside.split_once(", ")).context("label_values")?;
        let name = format!("${}", variable["name"].as_str().unwrap_or_default());
        if OTHER_PROGRAMS.iter().any(|prefix| metric.starts_with(prefix)) {
            values.insert(name, ".*".to_owned());
            continue;
        }
        let answer = prometheus.ask(&format!("label/{label}/values"), &[("match[]", metric)]).await?;
        let found: Vec<&str> = answer.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        ensure!(!found.is_empty(), "no values: {query}");
        values.insert(name, found.join("|"));
    }
    Ok(values)
}

async fn every_alert_is_evaluated(prometheus: &Prometheus) -> Result<()> {
    let rules = prometheus.ask("rules", &[]).await?;
    let groups = rules["groups"].as_array().context("no groups")?;
    let rules: Vec<&Value> = groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
    ensure!(rules.len() > 10, "{} alerts", rules.len());
    for rule in rules {
        ensure!(rule["health"] == "ok", "{rule}");
        // This cluster is well: nothing may be so wrong that somebody is called.
        ensure!(rule["labels"]["severity"] != "critical" || rule["state"] != "firing", "{rule}");
    }
    Ok(())
}

/// Also by the labels that it groups by: Prometheus does not say that a label is not there.
async fn every_query_of_a_runbook_is_answered(prometheus: &Prometheus) -> Result<()> {
    for (page, query) in fenced::lines_of_runbooks("promql")? {
        let answer = prometheus.ask("query", &[("query", &query)]).await;
        let answer = answer.with_context(|| format!("{page}: {query}"))?;
        let grouped = query.strip_prefix("sum by (").and_then(|rest| rest.split_once(')'));
        let labels: Vec<&str> = grouped.into_iter().flat_map(|(labels, _)| labels.split(", ")).collect();
        for sample in answer["result"].as_array().into_iter().flatten() {
            let missing = labels.iter().find(|label| !sample["metric"][**label].is_string());
            ensure!(missing.is_none(), "{page}: {query}: no label {missing:?}: {sample}");
        }
    }
    Ok(())
}
