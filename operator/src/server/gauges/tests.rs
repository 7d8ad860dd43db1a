//! Given clusters in memory; when they are scraped; then the list of metrics is complete and the number of
//! series bounded.

use andreas_api::slim::{SlimGpuNode, SlimNode, SlimTrainingJob};
use andreas_api::training_profile::Observation;
use andreas_lifecycle::ProfileUpdate;
use andreas_runtime::testing::classic;
use andreas_runtime::testing::{deviations, ill_named};
use andreas_runtime::watch::Index;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::*;
use crate::metrics::{LastPlan, Metrics, list};
use crate::predict::{Fit, Table};
use crate::testing::{at, boards, gpu_node};

/// Replaces the leader's collector by a cluster in memory.
struct Scraped {
    index: Mutex<ClusterIndex>,
    metrics: Metrics,
    now: Timestamp,
}

impl std::fmt::Debug for Scraped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scraped")
    }
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        self.metrics.state.encode_view(view(&self.index.lock(), self.now), &mut encoder)
    }
}

fn node(name: &str, gpu: &str, gpus: u32, ready: bool) -> SlimNode {
    let mut node = gpu_node(name, gpu, gpus);
    let ready = if ready { "True" } else { "False" };
    node["status"]["conditions"][0]["status"] = ready.into();
    serde_json::from_value(node).expect("a node")
}

fn job(namespace: &str, name: &str, status: Value) -> SlimTrainingJob {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "resourceVersion": "3",
            "creationTimestamp": at(0)},
        "spec": {"epochs": 10, "deadlineAfter": "1h", "template": {"spec": {"containers": []}}},
        "status": status}))
    .expect("a job")
}

fn running(gpu: &str, nodes: &[&str], phase: &str) -> Value {
    json!({"phase": phase, "allocation": {"attempt": 1, "generation": 1, "gpuType": gpu, "gpus": 2, "gpusPerWorker": 2, "guardWatts": 250, "guardReached": true,
        "nodes": nodes, "since": at(10), "runningTime": at(20), "watts": 700, "hostWatts": 100},
        "prediction": {"risk": "Low", "source": "Prior", "joules": 1}})
}

fn scrape(index: ClusterIndex, act: impl Fn(&Metrics), now: Timestamp) -> String {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let _ = andreas_runtime::watch::WatchMetrics::register(&mut registry);
    act(&metrics);
    encoded(&mut registry, index, metrics, now)
}

/// The text of a registry with the view of a cluster.
fn encoded(registry: &mut Registry, index: ClusterIndex, metrics: Metrics, now: Timestamp) -> String {
    registry.register_collector(Box::new(Scraped { index: Mutex::new(index), metrics, now }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("text");
    classic(&text)
}

/// Records one of everything.
fn everything(metrics: &Metrics) {
    metrics.wrote("status", "ok");
    metrics.answered("queue", "answered");
    metrics.planned(LastPlan {
        at: at(1),
        asked_over_available: Some(1.2),
        gpus_left_free: 3,
        budgeted: 10.0,
        allowed: Some(5.0),
    });
    metrics.set_budget_met(true);
    let before = job("team", "done", running("A", &["n1"], "Running"));
    let mut after: TrainingJobStatus = serde_json::from_value(json!({
        "phase": "Succeeded", "deadline": at(3_600), "completionTime": at(7_200), "startTime": at(20), "restarts": 1,
        "consumption": {"joules": 3_600_000, "source": "Predicted", "energyCostMicros": 200_000,
                        "hostJoules": 1_000_000, "hostCostMicros": 60_000, "latenessCostMicros": 500_000, "cost": ""},
        "history": [{"attempt": 1, "outcome": "Finished", "reason": "Completed", "gpuType": "A", "gpus": 2, "placement": "n1",
                     "started": at(20), "ended": at(7_200), "milliPercent": 100_000, "joules": 3_600_000, "message": ""}],
    }))
    .expect("a status");
    metrics.wrote_status(&before, &after);
    // The same again, as after a lost response that the watch shows later.
    let written = SlimTrainingJob { status: Some(after.clone()), ..before };
    after.restarts = 1;
    metrics.wrote_status(&written, &after);
    let row = andreas_planner::Estimate {
        rel_std: 0.2,
        ..andreas_planner::Estimate::new(
            "A".into(),
            andreas_model::GpuCount(2),
            andreas_model::Seconds(100.0),
            andreas_model::Watts(300.0),
        )
    };
    let times = vec![andreas_predictor::LogNormal {
        median: 100.0,
        sigma: 0.2,
        source: andreas_predictor::Source::Observed,
    }];
    let draws = vec![andreas_predictor::LogNormal { median: 300.0, ..times[0] }];
    let table = Table {
        rows: vec![row].into(),
        times,
        draws,
        spread: Vec::new(),
        limits: Vec::new(),
        prior: false,
        usual_row: None,
        predictions: Vec::new(),
        usual_run: andreas_model::Seconds(14_400.0),
    };
    let seen = serde_json::from_value(json!({"run": "done-1", "gpuType": "A", "gpus": 2, "nodes": 1,
        "millisPerEpoch": 125_000, "milliEpochs": 10_000, "at": at(7_200)}));
    let seen: Observation = seen.expect("an observation");
    metrics.metered(&table, &Observation { watts: Some(600), ..seen.clone() });
    metrics.learned(&table, &[ProfileUpdate::Observation(seen)]);
    let mut refused: std::collections::BTreeMap<String, u64> =
        (0..30).map(|n| (format!("lab-{n:02}"), 1)).collect();
    refused.insert("liar".into(), 9);
    metrics.fitted(&Fit { profiles: 1, rows: 7, refused });
    metrics.steps.deviations.inc();
}

fn small() -> ClusterIndex {
    let mut index = ClusterIndex::new();
    index.apply(node("n1", "A", 4, true));
    index.apply(node("n2", "A", 4, false));
    index.apply(node("n3", "B", 2, true));
    index.apply(job("team", "runs", running("A", &["n1"], "Running")));
    index.apply(job("team", "waits", json!({"phase": "Pending", "reason": "PowerBudget"})));
    index.apply(job("other", "new", json!(null)));
    index
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|each| each == line), "no line {line} in\n{text}");
}

#[test]
fn the_list_holds_what_is_exposed_and_nothing_else() {
    let elsewhere = [andreas_runtime::watch::WATCHES, andreas_runtime::certificates::CERTIFICATES].concat();
    let listed: Vec<_> = list::all().into_iter().filter(|metric| !elsewhere.contains(metric)).collect();
    let text = scrape(small(), everything, at(4_000));
    assert_eq!(deviations(&text, &listed), Vec::<String>::new(), "{text}");
    assert_eq!(ill_named(&list::all()), Vec::<String>::new());
}

#[test]
fn a_scrape_tells_what_there_is_now() {
    let text = scrape(small(), everything, at(4_000));
    for line in [
        r#"andreas_jobs{phase="Pending",reason="PowerBudget"} 1"#,
        r#"andreas_jobs{phase="Pending",reason="NotPlannedYet"} 1"#,
        r#"andreas_jobs{phase="Running",reason="Running"} 1"#,
        r#"andreas_jobs{phase="Failed",reason="RetriesExhausted"} 0"#,
        // An hour after their creation all three are late.
        r#"andreas_unfinished_jobs{risk="Late"} 3"#,
        "andreas_oldest_waiting_job_seconds 4000.0",
        "andreas_jobs_held_back 1.0",
        r#"andreas_gpus{gpu_type="A",state="held"} 2"#,
        r#"andreas_gpus{gpu_type="A",state="free"} 2"#,
        r#"andreas_gpus{gpu_type="A",state="unavailable"} 4"#,
        r#"andreas_gpus{gpu_type="B",state="free"} 2"#,
        "andreas_plan_asked_over_available_ratio 1.2",
        "andreas_plan_gpus_left_free 3",
        "andreas_planned_budget_violations_total 1",
        r#"andreas_attempts_ended_total{outcome="Finished",reason="Completed"} 1"#,
        r#"andreas_jobs_ended_total{phase="Succeeded",deadline="missed"} 1"#,
        "andreas_job_wait_seconds_sum 20.0",
        "andreas_restarts_total 1",
        r#"andreas_job_lateness_cost_total{job_namespace="team"} 0.5"#,
        r#"andreas_prediction_error_ratio_sum{source="Observed"} 0.25"#,
        r#"andreas_prediction_mape_ratio{quantity="epoch",gpu_type="A",source="Observed"} 0.19999999999999996"#,
        r#"andreas_prediction_coverage_ratio{quantity="epoch",gpu_type="A",source="Observed"} 1.0"#,
        r#"andreas_prediction_mape_ratio{quantity="power",gpu_type="A",source="Observed"} 0.5"#,
        r#"andreas_prediction_coverage_ratio{quantity="power",gpu_type="A",source="Observed"} 0.0"#,
        r#"andreas_predictor_refused_namespace_rows{job_namespace="liar"} 9.0"#,
        r#"andreas_predictor_refused_namespace_rows{job_namespace="lab-18"} 1.0"#,
        r#"andreas_predictor_refused_namespace_rows{job_namespace="_other"} 11.0"#,
    ] {
        let plain = line.strip_suffix(".0").unwrap_or(line);
        assert!(
            text.lines().any(|each| each.strip_suffix(".0").unwrap_or(each) == plain),
            "no {line} in\n{text}"
        );
    }
    // 3.6 MJ of the ended job, and 700 W for 3,980 s of the running one.
    has(&text, r#"andreas_job_energy_joules_total{job_namespace="team",gpu_type="A"} 6386000.0"#);
    // 1 MJ of the former's host, and 100 W of the latter's.
    has(&text, r#"andreas_job_host_energy_joules_total{job_namespace="team",gpu_type="A"} 1398000.0"#);
}

#[test]
fn gpus_that_one_job_gives_up_for_another_are_held_once() {
    let held = |jobs: &[(&str, &str)]| {
        let mut index = ClusterIndex::new();
        index.apply(node("n1", "A", 4, true));
        for (number, (phase, reason)) in jobs.iter().enumerate() {
            let mut status = running("A", &["n1"], phase);
            status["reason"] = (*reason).into();
            index.apply(job("team", &format!("j{number}"), status));
        }
        let view = view(&index, at(100));
        let counts = view.gpus["A"];
        let of = |state: &str| counts[STATES.iter().position(|known| *known == state).expect("a state")];
        assert_eq!(counts.iter().sum::<u64>(), 4, "a GPU has one state: {counts:?}");
        (of("held"), of("free"))
    };
    // Each has two of the four GPUs. The job that starts waits for those of the one that stops.
    assert_eq!(held(&[("Stopping", "Preempted"), ("Starting", "WaitingForRelease")]), (2, 2));
    assert_eq!(
        held(&[("Running", "Running"), ("Stopping", "Preempted"), ("Starting", "WaitingForRelease")]),
        (4, 0)
    );
    // Without one that stops, it waits for a pod that nobody plans; and pods that start have theirs.
    assert_eq!(held(&[("Running", "Running"), ("Starting", "WaitingForRelease")]), (4, 0));
    assert_eq!(held(&[("Stopping", "Preempted"), ("Starting", "PodsStarting")]), (4, 0));
}

#[test]
fn an_unhealthy_gpu_is_counted_once() {
    // Given a node of eight GPUs, of which the device plug-in offers some, and what its agent reports of them.
    let counted = |offered: u32, jobs: usize, agent: Value| {
        let mut index = ClusterIndex::new();
        let mut node = gpu_node("n1", "A", offered);
        node["status"]["capacity"] = json!({"nvidia.com/gpu": "8"});
        index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
        for number in 0..jobs {
            index.apply(job("team", &format!("j{number}"), running("A", &["n1"], "Running")));
        }
        let mut agent = agent;
        if let Some(gpus) = agent.get_mut("gpus") {
            *gpus = boards(gpus.take(), 8);
        }
        let gpu_node =
            json!({"metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {}, "status": agent});
        index.apply(serde_json::from_value::<SlimGpuNode>(gpu_node).expect("a gpu node"));
        let view = view(&index, at(100));
        let counts = view.gpus["A"];
        let of = |state: &str| counts[STATES.iter().position(|known| *known == state).expect("a state")];
        (of("held"), of("unhealthy"), of("free"))
    };
    let gpu = |state: &str, holder: Option<&str>| json!({"uuid": "GPU-0", "state": state, "holder": holder});
    let broken = json!({"agentVersion": "1", "gpus": [gpu("Unhealthy", None)]});
    assert_eq!(counted(8, 0, broken.clone()), (0, 1, 7), "the agent alone has seen it");
    assert_eq!(counted(7, 0, broken), (0, 1, 7), "the plug-in has taken out the same");
    assert_eq!(counted(7, 0, json!({})), (0, 1, 7), "no agent");
    assert_eq!(counted(0, 0, json!({})), (0, 0, 0), "the plug-in starts again");
    // Each job has two GPUs.
    let held = json!({"agentVersion": "1", "gpus": [gpu("Unhealthy", Some("team/j0-1-0"))]});
    assert_eq!(counted(8, 1, held.clone()), (2, 0, 6));
    assert_eq!(counted(7, 1, held.clone()), (2, 0, 6), "the plug-in has taken out the same");
    assert_eq!(counted(6, 1, held.clone()), (2, 1, 5), "and one more");
    assert_eq!(counted(7, 0, held), (0, 1, 7), "the job that held it has ended");
    let ended = json!({"gpus": [gpu("Unhealthy", None)]});
    assert_eq!(counted(8, 1, ended), (2, 0, 6), "an agent that has ended says nothing of now");
}

#[test]
fn a_planned_node_whose_agent_is_silent_counts_as_one_without_agent() {
    let mut index = ClusterIndex::new();
    for name in ["n1", "n2", "n3"] {
        index.apply(node(name, "A", 4, true));
    }
    // Whose kubelets are silent too: they may be off.
    for name in ["n4", "n5"] {
        index.apply(node(name, "A", 4, false));
    }
    let agent = |name: &str, state: &str| {
        let gpu = json!({"uuid": "GPU-0", "state": state, "watts": 300});
        let status = json!({"agentVersion": "1", "reportSeconds": 60, "gpus": boards(json!([gpu]), 4)});
        let gpu_node =
            json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {}, "status": status});
        serde_json::from_value::<SlimGpuNode>(gpu_node).expect("a gpu node")
    };
    index.apply(agent("n1", "Held"));
    index.apply(agent("n2", "Free"));
    index.apply(agent("n4", "Held"));
    assert_eq!(view(&index, at(100)).without_agent, 1, "n3 has none");
    index.age_reports(std::time::Duration::from_secs(180));
    assert_eq!(view(&index, at(100)).without_agent, 2, "an idle one has nothing to say");
}

/// A counter that is first seen above 0 shows no increase.
#[test]
fn counters_of_closed_sets_begin_at_zero() {
    let text = scrape(ClusterIndex::new(), |_| {}, at(100));
    for line in [
        r#"andreas_attempts_ended_total{outcome="ClusterFailure",reason="NodeNotReady"} 0"#,
        r#"andreas_attempts_ended_total{outcome="Withdrawn",reason="QuotaExceeded"} 0"#,
        r#"andreas_api_writes_total{kind="status",result="conflict"} 0"#,
        r#"andreas_progress_reports_total{result="later"} 0"#,
        r#"andreas_queries_total{question="whatif",result="denied"} 0"#,
        r#"andreas_prediction_error_ratio_count{source="Observed"} 0"#,
    ] {
        has(&text, line);
    }
}

#[test]
fn counters_of_a_namespace_begin_at_zero_with_its_jobs() {
    let mut index = ClusterIndex::new();
    index.apply(node("n1", "A", 4, true));
    let mut starting = running("A", &["n1"], "Starting");
    starting["allocation"]["runningTime"] = Value::Null;
    index.apply(job("team", "starts", starting));
    index.apply(job("other", "new", json!(null)));
    index.apply(job("former", "failed", json!({"phase": "Failed"})));
    let text = scrape(index, |_| {}, at(100));
    for line in [
        r#"andreas_job_lateness_cost_total{job_namespace="team"} 0.0"#,
        r#"andreas_job_lateness_cost_total{job_namespace="other"} 0.0"#,
        r#"andreas_job_energy_joules_total{job_namespace="team",gpu_type="A"} 0.0"#,
        r#"andreas_job_energy_cost_total{job_namespace="team",gpu_type="A"} 0.0"#,
    ] {
        has(&text, line);
    }
    assert!(!text.contains(r#"job_namespace="former""#), "a label for each namespace that had jobs: {text}");
}

#[test]
fn namespaces_whose_jobs_only_wait_leave_the_labels_to_those_whose_jobs_run() {
    let cluster = |runs: bool| {
        let mut index = ClusterIndex::new();
        index.apply(node("n1", "A", 4, true));
        for number in 0..250 {
            index.apply(job(&format!("lab-{number}"), "waits", json!({"phase": "Suspended"})));
        }
        if runs {
            index.apply(job("team", "runs", running("A", &["n1"], "Running")));
        }
        index
    };
    // Its first job starts after a scrape of all the others.
    let before = |metrics: &Metrics| {
        let text = encoded(&mut Registry::default(), cluster(false), metrics.clone(), at(10));
        has(&text, r#"andreas_job_lateness_cost_total{job_namespace="lab-0"} 0.0"#);
    };
    let text = scrape(cluster(true), before, at(20));
    has(&text, r#"andreas_job_energy_joules_total{job_namespace="team",gpu_type="A"} 0.0"#);
    has(&text, r#"andreas_job_lateness_cost_total{job_namespace="team"} 0.0"#);
    has(&text, r#"andreas_job_lateness_cost_total{job_namespace="_other"} 0.0"#);
    assert_eq!(text.matches("andreas_job_lateness_cost_total{").count(), 201);
}

/// Given the alerts and their tests; when they name a bucket of a histogram of the operator by its bound; then it is exposed so.
#[test]
fn alerts_ask_for_buckets_that_there_are() {
    let exposed = scrape(small(), everything, at(4_000));
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut named = 0;
    for file in ["charts/andreas/files/prometheus/alerts.yaml", "tests/e2e/prometheus/alerts.test.yaml"] {
        let text = std::fs::read_to_string(root.join(file)).expect("alerts");
        let mut parts = text.split("_bucket{");
        let mut before = parts.next().unwrap_or_default();
        for part in parts {
            let name = before.rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next();
            let series = format!("{}_bucket{{", name.unwrap_or_default());
            before = part;
            let labels = part.split('}').next().unwrap_or_default();
            let Some((_, bound)) = labels.split_once("le=\"") else { continue };
            let bound = format!("le=\"{}\"", bound.split('"').next().unwrap_or_default());
            let mut of_it = exposed.lines().filter(|line| line.starts_with(&series)).peekable();
            // Those of the extender are not here.
            if of_it.peek().is_some() {
                named += 1;
                assert!(of_it.any(|line| line.contains(&bound)), "{file}: no {series} with {bound}");
            }
        }
    }
    assert!(named > 5, "only {named} buckets");
}

/// Given 10,000 jobs of 1,000 namespaces with hostile names on 60 GPU types, ended, waiting and running in
/// turn; when they are scraped; then there are at most 5,000 series, and none contains a job's name.
#[test]
fn ten_thousand_jobs_make_no_more_than_five_thousand_series() {
    let mut index = ClusterIndex::new();
    for number in 0..60 {
        index.apply(node(&format!("n{number}"), &format!("type-{number}"), 8, true));
    }
    for number in 0..10_000 {
        let (namespace, gpu) = (format!("team-{}", number % 1_000), format!("type-{}", number % 60));
        let reason = Reason::ALL[number % Reason::ALL.len()].as_str();
        let status = match number % 3 {
            0 => running(&gpu, &[&format!("n{}", number % 60)], "Running"),
            1 => json!({"phase": "Pending", "reason": reason}),
            _ => json!({"phase": "Failed", "reason": format!("a\"}} {number}\nevil")}),
        };
        index.apply(job(&namespace, &format!("evil\"{number}"), status));
    }
    let ended = |metrics: &Metrics| {
        everything(metrics);
        for number in 0..10_000 {
            let before = job(&format!("team-{}", number % 1_000), &format!("j{number}"), json!(null));
            let after = serde_json::from_value(json!({"phase": "Failed", "completionTime": at(9),
                "consumption": {"joules": 1, "source": "", "energyCostMicros": 1, "latenessCostMicros": 1},
                "history": [{"attempt": 1, "outcome": "UserFailure", "reason": format!("evil {number}"), "gpuType": format!("type-{}", number % 60),
                             "gpus": 1, "placement": "", "ended": at(9), "milliPercent": 0, "joules": 1, "message": ""}]}));
            metrics.wrote_status(&before, &after.expect("a status"));
        }
    };
    let text = scrape(index, ended, at(4_000));
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!((1_000..=5_000).contains(&series), "{series} series");
    assert!(!text.contains("evil"), "a tenant's text is in the metrics");
    assert!(text.contains(r#"job_namespace="_other""#) && text.contains(r#"gpu_type="_other""#));
}
