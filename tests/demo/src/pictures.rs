//! Pictures of the dashboards and of the site, by a real browser: `make docs WHAT=pictures`.
//!
//! In: the demo's cluster while jobs of the trace run and somebody asks about them, a real Prometheus that scrapes it,
//! kube-state-metrics with the values of `deploy/kube-state-metrics`. A page (`tests/demo/boards`) asks that Prometheus for
//! every panel and draws it. Out: `docs/images/*.png`. A panel that cannot be drawn, or has no data where there should be some, is an error. Grafana itself
//! is not run: its licence (AGPL) keeps it out of this project's tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_e2e::apply::apply;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::pages::Page;
use andreas_e2e::scenario::DEFAULT_TIMEOUT;
use andreas_e2e::scrape::{self, Scrape};
use andreas_e2e::workload::{self, Manifests, TimeScale};
use andreas_testbed::{PortLease, Process, ProcessSpec};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::pages::root;

/// Seconds between two scrapes.
const SCRAPE: u32 = 2;
/// Seconds of the trace in one: the jobs arrive over 75 s, and the longest takes three minutes.
const SCALE: TimeScale = TimeScale(150.0);
/// How long it runs before the pictures are taken.
const LENGTH: Duration = Duration::from_secs(170);
/// How often somebody asks meanwhile.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// Width of the window, pixels.
const WIDTH: u32 = 1400;
/// Height of a picture, pixels: what does not fit is cut off.
const MAX_HEIGHT: u32 = 5000;

/// Series that a test bed with healthy whole GPUs, without dcgm-exporter or a history does not have.
const NO_DATA_HERE: [&str; 6] = [
    "DCGM_FI_",
    "ALERTS{",
    "andreas_gpu_problem",
    "andreas_gpu_rest_effect_watts",
    "andreas_gpu_xid_errors_total",
    "andreas_predictor_refused",
];

/// Takes all pictures.
///
/// # Errors
/// When something does not start, or a panel is not as it should be.
pub async fn take() -> Result<()> {
    let out = root().join("docs/images");
    let cluster = Cluster::start(super::options(&super::Nodes::pretend(), None)).await?;
    let taken = boards(&cluster, &out).await;
    cluster.stop().await;
    taken?;
    let site = root().join("target/docs/book/html/ask.html");
    let site = if site.is_file() { site } else { root().join("target/docs/book/ask.html") };
    if site.is_file() {
        shoot(&site, &out.join("site.png"), 1000).await?;
    } else {
        println!("no site in target/docs: run make docs first");
    }
    Ok(())
}

fn tempfile() -> PathBuf {
    std::env::temp_dir().join(format!("andreas-pictures-{}", std::process::id()))
}

async fn boards(cluster: &Cluster, out: &Path) -> Result<()> {
    let client = cluster.testbed.client();
    cluster.make_namespace(super::NAMESPACE).await?;
    let state = StateMetrics::start(cluster).await?;
    let scrape = Scrape::of(cluster).await?;
    let prometheus = Prometheus::start(cluster, &scrape, &state).await?;
    let of = |question: &str| {
        format!("/apis/query.andreas.dev/v1alpha1/namespaces/{}/{question}", super::NAMESPACE)
    };
    let questions = (Page::open(cluster, &of("queue")).await?, Page::open(cluster, &of("whatif")).await?);
    let began = Instant::now();
    let asking = tokio::task::spawn_blocking(move || ask(&questions, began + LENGTH));
    let start = now();
    let mut jobs = workload::jobs(SCALE)?.into_iter().peekable();
    while began.elapsed() < LENGTH {
        while let Some(job) = jobs.next_if(|job| began.elapsed().as_secs_f64() >= job.submit_offset_s) {
            let Manifests { profile, claim, job } = workload::manifest(&job);
            for mut object in [profile, claim, job] {
                object["metadata"]["namespace"] = json!(super::NAMESPACE);
                apply(&client, &object).await?;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let end = now();
    let answers = asking.await?;
    let mut wrong = Vec::new();
    if answers.contains(&0) {
        wrong.push(format!("answers to queue and whatif: {answers:?}"));
    }
    for entry in std::fs::read_dir(root().join("deploy/dashboards"))? {
        let path = entry?.path();
        let board: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let name = board["uid"].as_str().context("uid")?.to_owned();
        let page = prometheus.page(cluster, &expanded(&board), start, end)?;
        let dom = browser(&["--dump-dom"], &page, 1000).await?;
        let states = states(&dom);
        ensure!(dom.contains("data-done=\"true\""), "{name} was not drawn");
        for panel in scrape::panels(&board) {
            let title = panel["title"].as_str().unwrap_or_default();
            let queries = panel["targets"].to_string();
            let excused = NO_DATA_HERE.iter().any(|series| queries.contains(series));
            match states.get(title).map(String::as_str) {
                Some("data") => {}
                Some("none") if excused => {}
                other => wrong.push(format!("{name}: {title}: {other:?}")),
            }
        }
        // The picture is what one sees first: rows that are collapsed stay so.
        let page = prometheus.page(cluster, &board, start, end)?;
        let dom = browser(&["--dump-dom"], &page, 1000).await?;
        let height = dom.split("data-height=\"").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
        let height = height.unwrap_or(MAX_HEIGHT).min(MAX_HEIGHT);
        shoot(&page, &out.join(format!("board-{}.png", name.trim_start_matches("andreas-"))), height).await?;
        println!("{name}: {} panels, {} in sight", states.len(), self::states(&dom).len());
    }
    prometheus.process.stop().await;
    state.process.stop().await;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Asks for the queue, and what a smaller budget would change, until then. The answers to each: there are none before the first plan.
fn ask((queue, what_if): &(Page, Page), until: Instant) -> [usize; 2] {
    let mut answers = [0; 2];
    while Instant::now() < until {
        let codes = [queue.get(), what_if.post(r#"{"budgetWatts": 10000}"#)];
        for (count, code) in answers.iter_mut().zip(codes) {
            *count += usize::from(code.is_ok_and(|(code, _)| code == 200));
        }
        std::thread::sleep(ASKED_EVERY);
    }
    answers
}

fn now() -> f64 {
    jiff::Timestamp::now().as_millisecond() as f64 / 1000.0
}

/// The board with its collapsed rows opened, one below the other.
fn expanded(board: &Value) -> Value {
    let (mut board, mut down) = (board.clone(), 0);
    let mut shown = Vec::new();
    for mut panel in board["panels"].as_array().cloned().unwrap_or_default() {
        let below = panel["panels"].take().as_array().cloned().unwrap_or_default();
        let bottom = |one: &Value| {
            one["gridPos"]["y"].as_i64().unwrap_or(0) + one["gridPos"]["h"].as_i64().unwrap_or(0)
        };
        let opened = below.iter().map(bottom).max().map_or(0, |lowest| lowest - bottom(&panel));
        let lower = |mut one: Value| {
            one["gridPos"]["y"] = json!(one["gridPos"]["y"].as_i64().unwrap_or(0) + down);
            one
        };
        panel["panels"] = json!([]);
        shown.push(lower(panel));
        shown.extend(below.into_iter().map(lower));
        down += opened;
    }
    board["panels"] = Value::Array(shown);
    board
}

/// `data`, `none` or `error` by the panels' titles.
fn states(dom: &str) -> BTreeMap<String, String> {
    let panels = dom.split("<div class=\"panel\"").skip(1);
    let of = |text: &str, name: &str| {
        let value = text.split(&format!("{name}=\"")).nth(1)?.split('"').next()?;
        Some(value.replace("&amp;", "&").replace("&quot;", "\""))
    };
    panels
        .filter_map(|panel| {
            let tag = panel.split('>').next()?;
            Some((of(tag, "data-title")?, of(tag, "data-state").unwrap_or_default()))
        })
        .collect()
}

struct StateMetrics {
    process: Process,
    address: String,
    _port: Arc<PortLease>,
}

impl StateMetrics {
    async fn start(cluster: &Cluster) -> Result<Self> {
        let program = andreas_testbed::built("kube-state-metrics").await?.join("kube-state-metrics");
        let values: Value = serde_saphyr::from_str(&std::fs::read_to_string(
            root().join("deploy/kube-state-metrics/values.yaml"),
        )?)?;
        let config = cluster.testbed.data_dir().join("state-metrics.json");
        std::fs::write(&config, values["customResourceState"]["config"].to_string())?;
        let (port, telemetry) = (Arc::new(PortLease::take()?), PortLease::take()?);
        let address = format!("127.0.0.1:{}", port.port());
        let spec = ProcessSpec::new("kube-state-metrics", program)
            .args(["--kubeconfig", &cluster.testbed.kubeconfig().display().to_string()])
            .args(["--custom-resource-state-only", "--custom-resource-state-config-file"])
            .args([config.display().to_string()])
            .args(["--host", "127.0.0.1", "--port", &port.port().to_string()])
            .args(["--telemetry-host", "127.0.0.1", "--telemetry-port", &telemetry.port().to_string()])
            .holding(port.clone());
        let process = cluster.testbed.spawn(spec)?;
        process.wait_for_http(&address, "/livez", DEFAULT_TIMEOUT).await?;
        Ok(Self { process, address, _port: port })
    }
}

struct Prometheus {
    process: Process,
    url: String,
    _port: Arc<PortLease>,
}

impl Prometheus {
    async fn start(cluster: &Cluster, scrape: &Scrape, state: &StateMetrics) -> Result<Self> {
        let mut config = scrape::configuration(&scrape.jobs, SCRAPE);
        let targets = json!([{"targets": [state.address]}]);
        let jobs = config["scrape_configs"].as_array_mut().context("scrape_configs")?;
        jobs.push(json!({"job_name": "kube-state-metrics", "static_configs": targets}));
        let file = cluster.testbed.data_dir().join("prometheus.json");
        std::fs::write(&file, config.to_string())?;
        let port = Arc::new(PortLease::take()?);
        let address = format!("127.0.0.1:{}", port.port());
        let data = cluster.testbed.data_dir().join("prometheus");
        let spec = ProcessSpec::new("prometheus", scrape::programs().await?.join("prometheus"))
            .args(["--config.file", &file.display().to_string()])
            .args(["--storage.tsdb.path", &data.display().to_string()])
            .args(["--web.listen-address", &address])
            .holding(port.clone());
        let process = cluster.testbed.spawn(spec)?;
        process.wait_for_http(&address, "/-/ready", DEFAULT_TIMEOUT).await?;
        Ok(Self { process, url: format!("http://{address}"), _port: port })
    }

    /// A page that draws a board.
    fn page(&self, cluster: &Cluster, board: &Value, start: f64, end: f64) -> Result<PathBuf> {
        let variables = board["templating"]["list"].as_array().into_iter().flatten();
        let all: serde_json::Map<String, Value> = variables
            .filter(|variable| variable["type"] == "query")
            .map(|variable| (variable["name"].as_str().unwrap_or_default().to_owned(), json!(".*")))
            .collect();
        let input = json!({"board": board, "prometheus": self.url, "start": start, "end": end, "scrape": SCRAPE, "variables": all});
        let folder = root().join("tests/demo/boards");
        let page = std::fs::read_to_string(folder.join("page.html"))?
            // No text of a board ends the script.
            .replace("/*INPUT*/null", &input.to_string().replace("</", "<\\/"))
            .replace("/*SCRIPT*/", &std::fs::read_to_string(folder.join("render.js"))?);
        let file =
            cluster.testbed.data_dir().join(format!("{}.html", board["uid"].as_str().unwrap_or("board")));
        std::fs::write(&file, page)?;
        Ok(file)
    }
}

/// Runs the browser on a page; what it prints.
async fn browser(flags: &[&str], page: &Path, height: u32) -> Result<String> {
    let profile = tempfile().with_extension("browser");
    let output = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
        ])
        .args(["--virtual-time-budget=30000", "--force-device-scale-factor=1"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--window-size={WIDTH},{height}"))
        .args(flags)
        .arg(format!("file://{}", page.canonicalize()?.display()))
        .stdin(Stdio::null())
        .output()
        .await
        .context("chromium (Debian: apt-get install chromium)")?;
    let _ = std::fs::remove_dir_all(profile);
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn shoot(page: &Path, picture: &Path, height: u32) -> Result<()> {
    let _ = std::fs::remove_file(picture);
    let absolute =
        picture.parent().context("a folder")?.canonicalize()?.join(picture.file_name().context("a name")?);
    browser(&[&format!("--screenshot={}", absolute.display())], page, height).await?;
    ensure!(absolute.is_file(), "no picture {}", absolute.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_from_the_page() {
        let dom = r#"<div class="panel" data-title="A &amp; B" data-state="data" style=""><div class="title">A</div></div>
            <div class="panel" data-title="C" data-state="none"></div>"#;
        assert_eq!(
            states(dom),
            BTreeMap::from([("A & B".into(), "data".into()), ("C".into(), "none".into())])
        );
    }
}
