//! The YAML description of a cluster, its policy settings and its models.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use andreas_baselines::Tickets;
use andreas_model::{CostRate, EnergyPrice, GpuCount, HostPower, Seconds, StepFunction, Tariff, Time, Watts};
use andreas_planner::{DEFAULT_WEAR, GpuTypeInfo, Lateness, Node};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::models::ModelTables;
use super::rules::{JobRules, RulesInput, TracedJob};
use super::sources::{self, Source};
use super::table::{open, rows};
use super::traces::TraceJob;
use super::{ROUNDS, ReadError, TraceRange};
use crate::scenario::{Delays, Failure, Scenario, SleepModel};

/// A cluster file. Times are seconds from the first submission.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    gpu_types: Vec<TypeEntry>,
    #[serde(default)]
    nodes: Vec<NodeEntry>,
    /// A list of nodes from a file, added to `nodes`.
    #[serde(default)]
    node_list: Option<NodeList>,
    tariff: TariffEntry,
    #[serde(default)]
    budget: Option<BudgetEntry>,
    #[serde(default)]
    lateness: LatenessEntry,
    #[serde(default = "default_restart_s")]
    restart_s: f64,
    #[serde(default)]
    wear_s: Option<f64>,
    #[serde(default = "default_checkpoint_s")]
    checkpoint_s: f64,
    #[serde(default = "default_tick_s")]
    tick_s: Option<f64>,
    #[serde(default)]
    failures: Option<FailureEntry>,
    /// Times that starts, stops and decisions take; all of them, if there is one.
    #[serde(default = "default_delays")]
    delays: Delays,
    /// How nodes sleep, in replays that let them.
    #[serde(default)]
    sleep: SleepModel,
    /// Tickets of namespaces, for fair-share policies; default 1.
    #[serde(default)]
    tickets: BTreeMap<String, f64>,
    #[serde(default)]
    jobs: JobRules,
    models: Vec<Source>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeEntry {
    name: String,
    idle_w: f64,
    max_w: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    gpu_type: String,
    gpus: u32,
    count: u32,
    /// Draw of a node without its GPUs, without and with a job; default: by the number and power of its GPUs.
    #[serde(default)]
    host_idle_w: Option<f64>,
    #[serde(default)]
    host_busy_w: Option<f64>,
}

/// Alibaba's list of nodes: `sn, cpu_milli, memory_mib, gpu, model`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeList {
    openb: PathBuf,
    /// Takes every n-th node with GPUs.
    #[serde(default = "one")]
    one_in: usize,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
struct OpenbNode {
    sn: String,
    gpu: u32,
    model: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TariffEntry {
    #[serde(default)]
    per_kwh: Option<f64>,
    /// Prices by hour of the day, repeated daily.
    #[serde(default)]
    by_hour: Vec<f64>,
    /// `[from_s, price]`.
    #[serde(default)]
    windows: Vec<(f64, f64)>,
    #[serde(default = "unit")]
    pue: f64,
}

/// The policy's `preemption.restartTime`.
fn default_restart_s() -> f64 {
    120.0
}

/// Programs save each half hour.
fn default_checkpoint_s() -> f64 {
    1800.0
}

/// Without any event the product decides again at least so often.
fn default_tick_s() -> Option<f64> {
    Some(900.0)
}

/// A minute from the binding to the first step, and most of a pod's usual grace until the GPUs are free.
fn default_delays() -> Delays {
    Delays { first_start_s: 60.0, stop_s: 45.0, ..Delays::default() }
}

fn unit() -> f64 {
    1.0
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetEntry {
    #[serde(default)]
    watts: Option<f64>,
    #[serde(default)]
    windows: Vec<(f64, f64)>,
    /// Budget as a share of the peak draw of all GPUs and nodes.
    #[serde(default)]
    share_of_peak: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LatenessEntry {
    price_per_hour: f64,
    turnaround_share: f64,
    miss_s: f64,
    aging_h: Option<f64>,
}

impl Default for LatenessEntry {
    /// The product's defaults.
    fn default() -> Self {
        Self { price_per_hour: 0.02, turnaround_share: 0.1, miss_s: 900.0, aging_h: None }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FailureEntry {
    list: Vec<OneFailure>,
    /// Mean time between failures of a node in hours, exponentially distributed.
    mtbf_h: Option<f64>,
    repair_h: f64,
    /// Days with random failures.
    days: f64,
    seed: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneFailure {
    node: String,
    at_s: f64,
    for_s: f64,
}

/// Days for which an hourly tariff is repeated.
const TARIFF_DAYS: usize = 400;
const MAX_NODES: usize = 100_000;
/// Epochs that a job which fails or is cancelled announced besides, as a share of those that it trains: it is taken to
/// end halfway.
const UNFINISHED: f64 = 1.0;

impl ClusterFile {
    /// Reads the file and its tables.
    ///
    /// # Errors
    /// [`ReadError`], with the position in the file.
    pub fn read(file: &Path) -> Result<(Self, ModelTables), ReadError> {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut open(file)?, &mut text)
            .map_err(|source| ReadError::Io { file: file.to_owned(), source })?;
        let description: Self =
            serde_saphyr::from_str(&text).map_err(|e| ReadError::bad(file, "YAML", e.to_string()))?;
        let models = sources::read(&description.models, file.parent().unwrap_or(Path::new(".")))?;
        if models.families.is_empty() {
            return Err(ReadError::bad(file, "models", "there is none"));
        }
        Ok((description, models))
    }

    /// The scenario of these jobs on this cluster.
    pub(super) fn scenario(
        &self,
        file: &Path,
        name: String,
        models: &ModelTables,
        rows: &[TraceJob],
        range: &TraceRange,
    ) -> Result<Scenario, ReadError> {
        let bad = |at: &str, problem: &str| ReadError::bad(file, at, problem);
        let gpu_types = self.types(file)?;
        let nodes = self.nodes(file)?;
        let tariff = self.tariff().map_err(|problem| bad("tariff", &problem))?;
        let budget = self.budget(&gpu_types, &nodes).map_err(|problem| bad("budget", &problem))?;
        let l = &self.lateness;
        for (at, value) in [
            ("restart_s", self.restart_s),
            ("wear_s", self.wear_s.unwrap_or_default()),
            ("checkpoint_s", self.checkpoint_s),
            ("tick_s", self.tick_s.unwrap_or(1.0)),
            ("lateness.price_per_hour", l.price_per_hour),
            ("lateness.turnaround_share", l.turnaround_share),
            ("lateness.miss_s", l.miss_s),
            ("lateness.aging_h", l.aging_h.unwrap_or(1.0)),
            ("jobs.epoch_s", self.jobs.epoch_s),
            ("delays.debounce_s", self.delays.debounce_s),
            ("delays.bind_s", self.delays.bind_s),
            ("delays.first_start_s", self.delays.first_start_s),
            ("delays.stop_s", self.delays.stop_s),
            ("sleep.wake_s", self.sleep.wake_s),
            ("sleep.wake_j", self.sleep.wake_j),
            ("sleep.rule.idle_s", self.sleep.rule.idle_s),
            ("sleep.rule.horizon_s", self.sleep.rule.horizon_s),
        ] {
            let must = if matches!(at, "tick_s" | "lateness.aging_h" | "jobs.epoch_s") { 1e-3 } else { 0.0 };
            if !(must..=1e12).contains(&value) {
                return Err(bad(at, "is out of range"));
            }
        }
        for (at, share) in [
            ("jobs.moldable", self.jobs.moldable),
            ("sleep.wake_fails", self.sleep.wake_fails),
            ("sleep.rule.quantile", self.sleep.rule.quantile),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(bad(at, "is not between 0 and 1"));
            }
        }
        let rules = JobRules { moldable: range.moldable.unwrap_or(self.jobs.moldable), ..self.jobs.clone() };
        let input = RulesInput {
            types: &gpu_types,
            nodes: &nodes,
            models,
            lateness: CostRate(l.price_per_hour / 3600.0),
            origin_s: rows.first().map_or(0.0, |r| r.submit_s),
            pace: range.pace,
            programs: range.programs,
        };
        let mut features = BTreeMap::new();
        let mut programs = BTreeMap::new();
        let mut jobs = Vec::new();
        let mut unfinished = BTreeMap::new();
        // Of a looped trace those of one round are named: of the second, which is counted.
        let round = rows.len() / if range.looped { ROUNDS } else { 1 };
        let named = if range.looped { round..2 * round } else { 0..round };
        let mut left_out = 0;
        for (number, row) in rows.iter().enumerate() {
            if let Some(TracedJob { job, features: of_job, profile }) = rules.job(row, &input) {
                features.insert(job.id.clone(), of_job);
                programs.extend(profile.map(|profile| (job.id.clone(), profile)));
                if row.ended_early {
                    unfinished.insert(job.id.clone(), job.epochs_left * UNFINISHED);
                }
                jobs.push(job);
            } else if named.contains(&number) {
                left_out += 1;
            }
        }
        if jobs.is_empty() {
            return Err(bad("models", "no job of the trace can run on this cluster"));
        }
        let failures = self.failures(file, &nodes)?;
        if let Some((name, _)) = self.tickets.iter().find(|(_, n)| !(**n > 0.0 && **n <= 1e9)) {
            return Err(bad(&format!("tickets.{name}"), "is not above 0 and at most 1e9"));
        }
        let tickets = self.tickets.iter().map(|(name, tickets)| (name.as_str().into(), *tickets));
        let scenario = Scenario {
            tickets: Tickets(tickets.collect()),
            name: if left_out > 0 { format!("{name}, {left_out} left out that fit nowhere") } else { name },
            gpu_types: gpu_types.clone(),
            nodes: nodes.clone(),
            tariff,
            budget,
            lateness: Lateness {
                turnaround_share: l.turnaround_share,
                late_fixed: Seconds(l.miss_s),
                aging: l.aging_h.map(|h| Seconds(h * 3600.0)),
            },
            restart: Seconds(self.restart_s),
            wear: self.wear_s.map_or(DEFAULT_WEAR, Seconds),
            checkpoint: Seconds(self.checkpoint_s),
            tick: self.tick_s.map(Seconds),
            catalogue: None,
            failures,
            delays: self.delays,
            sleep: self.sleep,
            window: None,
            jobs,
            features,
            programs,
            unfinished,
        };
        Ok(scenario.sorted())
    }

    fn types(&self, file: &Path) -> Result<Vec<GpuTypeInfo>, ReadError> {
        let mut seen = BTreeSet::new();
        let mut types = Vec::new();
        for (i, entry) in self.gpu_types.iter().enumerate() {
            let sound = entry.idle_w >= 0.0 && entry.max_w >= entry.idle_w && entry.max_w < 1e9;
            if !(seen.insert(&entry.name) && sound) {
                let at = format!("gpu_types[{i}]");
                return Err(ReadError::bad(file, at, "names must differ, and 0 <= idle_w <= max_w"));
            }
            types.push(GpuTypeInfo {
                name: entry.name.as_str().into(),
                idle: Watts(entry.idle_w),
                max: Watts(entry.max_w),
            });
        }
        Ok(types)
    }

    fn nodes(&self, file: &Path) -> Result<Vec<Node>, ReadError> {
        let known: BTreeSet<&str> = self.gpu_types.iter().map(|t| t.name.as_str()).collect();
        let mut nodes: Vec<Node> = Vec::new();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (i, entry) in self.nodes.iter().enumerate() {
            let at = |what: &str| format!("nodes[{i}].{what}");
            if !known.contains(entry.gpu_type.as_str()) {
                return Err(ReadError::bad(
                    file,
                    at("gpu_type"),
                    format!("{:?} is not in gpu_types", entry.gpu_type),
                ));
            }
            if entry.gpus == 0 || entry.gpus > 1024 {
                return Err(ReadError::bad(file, at("gpus"), "is not between 1 and 1024"));
            }
            for (field, watts) in [("host_idle_w", entry.host_idle_w), ("host_busy_w", entry.host_busy_w)] {
                if watts.is_some_and(|watts| !(0.0..1e9).contains(&watts)) {
                    return Err(ReadError::bad(file, at(field), "is out of range"));
                }
            }
            let known = [entry.host_idle_w, entry.host_busy_w];
            let host = self.host(&entry.gpu_type, entry.gpus, known.map(|watts| watts.map(Watts)));
            if nodes.len() + entry.count as usize > MAX_NODES {
                return Err(ReadError::bad(file, at("count"), format!("makes more than {MAX_NODES} nodes")));
            }
            for _ in 0..entry.count {
                let number = counts.entry(&entry.gpu_type).or_default();
                nodes.push(node(
                    format!("{}-{number:03}", entry.gpu_type),
                    &entry.gpu_type,
                    entry.gpus,
                    host,
                ));
                *number += 1;
            }
        }
        if let Some(list) = &self.node_list {
            let path = file.parent().unwrap_or(Path::new(".")).join(&list.openb);
            let with_gpus = rows::<OpenbNode>(&path)?
                .into_iter()
                .filter(|n| n.gpu > 0 && known.contains(n.model.as_str()));
            let default = |n: &OpenbNode| self.host(&n.model, n.gpu, [None; 2]);
            nodes.extend(with_gpus.step_by(list.one_in.max(1)).map(|n| {
                let host = default(&n);
                node(n.sn, &n.model, n.gpu, host)
            }));
        }
        if nodes.is_empty() {
            return Err(ReadError::bad(file, "nodes", "there is none"));
        }
        Ok(nodes)
    }

    /// Draw of a node without its GPUs: as given, else by its GPUs.
    fn host(&self, gpu_type: &str, gpus: u32, [idle, busy]: [Option<Watts>; 2]) -> HostPower {
        let max = self.gpu_types.iter().find(|t| t.name == gpu_type).map_or(0.0, |t| t.max_w);
        HostPower::default_for(Watts(max), gpus).known(idle, busy)
    }

    fn tariff(&self) -> Result<Tariff, String> {
        let entry = &self.tariff;
        if !(1.0..=100.0).contains(&entry.pue) {
            return Err("pue is not between 1 and 100".to_owned());
        }
        let windows = match (&entry.per_kwh, entry.by_hour.len(), entry.windows.len()) {
            (Some(price), 0, 0) => vec![(0.0, *price)],
            (None, 24, 0) => {
                (0..TARIFF_DAYS * 24).map(|h| (h as f64 * 3600.0, entry.by_hour[h % 24])).collect()
            }
            (None, 0, 1..) => entry.windows.clone(),
            _ => return Err("needs exactly one of per_kwh, by_hour (24 prices) and windows".to_owned()),
        };
        steps(&windows, |kwh| EnergyPrice::per_kwh(kwh, entry.pue))
    }

    fn budget(&self, types: &[GpuTypeInfo], nodes: &[Node]) -> Result<Option<StepFunction<Watts>>, String> {
        let Some(entry) = &self.budget else { return Ok(None) };
        let windows = match (entry.watts, entry.windows.len(), entry.share_of_peak) {
            (Some(watts), 0, None) => vec![(0.0, watts)],
            (None, 1.., None) => entry.windows.clone(),
            (None, 0, Some(share)) => vec![(0.0, share * peak(types, nodes).0)],
            _ => return Err("needs exactly one of watts, windows and share_of_peak".to_owned()),
        };
        steps(&windows, Watts).map(Some)
    }

    fn failures(&self, file: &Path, nodes: &[Node]) -> Result<Vec<Failure>, ReadError> {
        let Some(entry) = &self.failures else { return Ok(Vec::new()) };
        let mut failures = Vec::new();
        for (i, one) in entry.list.iter().enumerate() {
            let known = nodes.iter().any(|n| n.name.as_str() == one.node);
            if !known || !(0.0..1e12).contains(&one.at_s) || !(0.0..1e12).contains(&one.for_s) {
                let at = format!("failures.list[{i}]");
                return Err(ReadError::bad(
                    file,
                    at,
                    "names no node of the cluster, or a time is out of range",
                ));
            }
            failures.push(Failure {
                node: one.node.as_str().into(),
                at: Time(one.at_s),
                duration: Seconds(one.for_s),
            });
        }
        if let Some(mean) = entry.mtbf_h {
            if !(0.1..=1e9).contains(&mean)
                || !(0.0..=1e6).contains(&entry.repair_h)
                || !(0.0..=1e5).contains(&entry.days)
            {
                return Err(ReadError::bad(file, "failures", "mtbf_h, repair_h or days is out of range"));
            }
            let mut rng = ChaCha8Rng::seed_from_u64(entry.seed);
            for node in nodes {
                let mut at = 0.0;
                loop {
                    at -= mean * 3600.0 * libm::log(1.0 - rng.random::<f64>());
                    if at > entry.days * 86400.0 {
                        break;
                    }
                    let duration = Seconds(entry.repair_h * 3600.0);
                    failures.push(Failure { node: node.name.clone(), at: Time(at), duration });
                    at += duration.0;
                }
            }
        }
        Ok(failures)
    }
}

/// Peak draw of all GPUs and nodes.
pub fn peak(types: &[GpuTypeInfo], nodes: &[Node]) -> Watts {
    let max = |node: &Node| types.iter().find(|t| t.name == node.gpu_type).map_or(Watts::ZERO, |t| t.max);
    nodes.iter().map(|n| n.host_idle + n.overhead() + max(n) * f64::from(n.gpus.0)).sum()
}

fn steps<T: Copy>(windows: &[(f64, f64)], value: impl Fn(f64) -> T) -> Result<StepFunction<T>, String> {
    if let Some((from, x)) = windows.iter().find(|(_, x)| !(0.0..1e12).contains(x)) {
        return Err(format!("{x}, from {from} s on, is out of range"));
    }
    StepFunction::new(windows.iter().map(|(from, x)| (Time(*from), value(*x))).collect())
        .map_err(|e| e.to_string())
}

fn node(name: String, gpu_type: &str, gpus: u32, host: HostPower) -> Node {
    Node {
        host_idle: host.idle,
        host_busy: host.busy,
        ..Node::new(name.into(), gpu_type.into(), GpuCount(gpus))
    }
}
