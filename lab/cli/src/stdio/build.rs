//! From a state and what is known of its jobs to a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_model::{
    CostRate, EnergyPrice, GpuCount, GpuType, JobId, NodeName, Seconds, StepFunction, Time, Watts,
};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, MultiNodeEffect, Node, Placement,
    PowerBudget, Resources, Snapshot,
};

use super::input_error::{InputError, bad, not_negative, positive, required};
use super::wire::{ClassEntry, JobEntry, MAX_JOBS, PlacementEntry, State, StateName};

/// Most nodes, and most GPUs in one, as in the planner.
const MAX_NODES: u32 = 100_000;
const MAX_NODE_GPUS: u32 = 1024;
const MAX_GANG: u32 = 4096;

/// An entry of one of the lists of a line.
#[derive(Clone, Copy)]
struct Listed<'a> {
    list: &'static str,
    index: usize,
    entry: &'a JobEntry,
}

impl Listed<'_> {
    /// Path of a field.
    fn path_of(&self, field: &str) -> String {
        format!("{}[{}].{field}", self.list, self.index)
    }
}

fn listed<'a>(list: &'static str, entries: &'a [JobEntry]) -> impl Iterator<Item = Listed<'a>> {
    entries.iter().enumerate().map(move |(index, entry)| Listed { list, index, entry })
}

/// What a line says of a job: in `jobs`, else in `new_jobs`.
struct Given<'a> {
    job: Listed<'a>,
    new: Option<Listed<'a>>,
}

impl<'a> Given<'a> {
    /// A value, and the entry that it is in.
    fn find<T>(&self, of: impl Fn(&'a JobEntry) -> Option<T>) -> Option<(T, Listed<'a>)> {
        let in_new = || self.new.and_then(|new| Some((of(new.entry)?, new)));
        of(self.job.entry).map(|value| (value, self.job)).or_else(in_new)
    }
}

/// Jobs that earlier decisions started: where, and since when.
pub type RunningJobs = BTreeMap<JobId, (Placement, Time)>;

/// Everything of a state but its jobs.
pub fn snapshot_of(state: &State) -> Result<Snapshot, InputError> {
    if state.version.is_some_and(|v| v != 1) {
        return bad("version", "this program speaks version 1");
    }
    let now = not_negative(state.now, || "now".into())?;
    let pue = state.pue.unwrap_or(1.0);
    if !(1.0..=100.0).contains(&pue) {
        return bad("pue", format!("{pue} is not between 1 and 100"));
    }
    let price = |kwh: f64| EnergyPrice::per_kwh(kwh, pue);
    let tariff = match &state.tariff {
        Some(windows) => steps(windows, "tariff", price)?,
        None => {
            let kwh = *required(state.eur_per_kwh.as_ref(), || "eur_per_kwh".into())?;
            StepFunction::flat(price(not_negative(kwh, || "eur_per_kwh".into())?))
        }
    };
    let budget = match (&state.budget, state.power_budget_w) {
        (Some(windows), _) => Some(steps(windows, "budget", Watts)?),
        (None, Some(watts)) => {
            Some(StepFunction::flat(Watts(not_negative(watts, || "power_budget_w".into())?)))
        }
        (None, None) => None,
    };
    let optional = |value: Option<f64>, name: &str| not_negative(value.unwrap_or(0.0), || name.to_owned());
    // A hint that no method needs.
    optional(state.horizon_s, "horizon_s")?;
    Ok(Snapshot {
        now: Time(now),
        tariff,
        budget: budget.map(|watts| PowerBudget { watts, margin: 0.0, scope_factor: 1.0 }),
        lateness: Lateness {
            turnaround_share: optional(state.turnaround_share, "turnaround_share")?,
            late_fixed: Seconds(optional(state.late_fixed_s, "late_fixed_s")?),
            aging: None,
        },
        restart: Seconds(optional(state.restart_s, "restart_s")?),
        wear: Seconds(optional(state.wear_s, "wear_s")?),
        gpu_types: gpu_types(state)?,
        nodes: nodes(state)?,
        namespaces: Vec::new(),
        jobs: Vec::new(),
        prices: state.prices.clone(),
        intended: state.intended.clone().unwrap_or_default(),
    })
}

fn steps<T: Copy>(
    windows: &[(f64, f64)],
    name: &str,
    value: impl Fn(f64) -> T,
) -> Result<StepFunction<T>, InputError> {
    let mut checked = Vec::with_capacity(windows.len());
    for (i, (from, number)) in windows.iter().enumerate() {
        let from = not_negative(*from, || format!("{name}[{i}][0]"))?;
        let number = not_negative(*number, || format!("{name}[{i}][1]"))?;
        checked.push((Time(from), value(number)));
    }
    StepFunction::new(checked).map_err(|e| InputError { field: name.into(), problem: e.to_string() })
}

fn gpu_types(state: &State) -> Result<Vec<GpuTypeInfo>, InputError> {
    let mut seen = BTreeSet::new();
    let mut types = Vec::with_capacity(state.gpu_types.len());
    for (i, entry) in state.gpu_types.iter().enumerate() {
        let at = |what: &str| format!("gpu_types[{i}].{what}");
        if !seen.insert(&entry.name) {
            return bad(at("name"), format!("{:?} is there twice", entry.name));
        }
        let idle = not_negative(entry.idle_w, || at("idle_w"))?;
        let max = not_negative(entry.max_w, || at("max_w"))?;
        if max < idle {
            return bad(at("max_w"), format!("{max} is below idle_w"));
        }
        types.push(GpuTypeInfo { name: entry.name.as_str().into(), idle: Watts(idle), max: Watts(max) });
    }
    Ok(types)
}

fn nodes(state: &State) -> Result<Vec<Node>, InputError> {
    let mut nodes = Vec::new();
    let mut total = 0_u32;
    for (c, class) in state.classes.iter().enumerate() {
        let at = |what: &str| format!("classes[{c}].{what}");
        if !state.gpu_types.iter().any(|t| t.name == class.gpu_type) {
            return bad(at("gpu_type"), format!("{:?} is not in gpu_types", class.gpu_type));
        }
        if class.gpus == 0 || class.gpus > MAX_NODE_GPUS {
            return bad(at("gpus"), format!("{} is not between 1 and {MAX_NODE_GPUS}", class.gpus));
        }
        let overhead = not_negative(class.overhead_w, || at("overhead_w"))?;
        let host_idle = not_negative(class.host_idle_w, || at("host_idle_w"))?;
        total = total.saturating_add(class.count);
        if total > MAX_NODES {
            return bad(at("count"), format!("makes more than {MAX_NODES} nodes"));
        }
        let gpu_type = GpuType::from(class.gpu_type.as_str());
        nodes.extend((0..class.count).map(|i| Node {
            name: NodeName::from(format!("{c}/{i}")),
            gpu_type: gpu_type.clone(),
            gpus: GpuCount(class.gpus),
            boards: GpuCount(class.gpus),
            free_gpus: GpuCount(class.gpus),
            host_idle: Watts(host_idle),
            host_busy: Watts(host_idle + overhead),
            sleep: None,
            foreign_power: None,
            gang_class: u32::try_from(c).unwrap_or(u32::MAX),
            free: Resources::default(),
        }));
    }
    Ok(nodes)
}

/// What is kept of a job from the line that introduced it. What it does, and what is left of it, each line says anew.
pub fn table(entry: &JobEntry, i: usize) -> Result<Job, InputError> {
    let at = |what: &str| format!("new_jobs[{i}].{what}");
    if entry.id == "_plan" || entry.id == "_error" {
        return bad(at("id"), "is a word of the protocol");
    }
    let number = |value: Option<f64>, name: &str| -> Result<f64, InputError> {
        not_negative(*required(value.as_ref(), || at(name))?, || at(name))
    };
    let rel_std = entry.rel_std.unwrap_or(0.0);
    if !(0.0..=10.0).contains(&rel_std) {
        return bad(at("rel_std"), format!("{rel_std} is not between 0 and 10"));
    }
    let deadline = entry.deadline_s.map(|d| not_negative(d, || at("deadline_s"))).transpose()?;
    if let Some(epochs) = entry.epochs_left {
        positive(epochs, || at("epochs_left"))?;
    }
    if entry.req_gpus.is_some_and(|g| g == 0 || g > MAX_NODE_GPUS * MAX_GANG) {
        return bad(at("req_gpus"), "is out of range");
    }
    let job = Job::new(
        entry.id.as_str().into(),
        "default".into(),
        Time(number(entry.submit_s, "submit_s")?),
        CostRate(number(entry.weight, "weight")?),
        entry.epochs_left.unwrap_or(0.0),
        estimates(entry, rel_std, &at)?.into(),
    );
    Ok(Job {
        deadline: deadline.map(Time),
        spread: spread(entry, &at)?,
        limits: limits(entry, &at)?,
        requested_gpus: entry.req_gpus.map(GpuCount),
        movable: entry.movable.unwrap_or(true),
        min_run: Seconds(not_negative(entry.min_run_s.unwrap_or(0.0), || at("min_run_s"))?),
        restart: restart(entry, || at("restart_s"))?,
        ..job
    })
}

fn restart(entry: &JobEntry, field: impl FnOnce() -> String) -> Result<Option<Seconds>, InputError> {
    entry.restart_s.map(|seconds| not_negative(seconds, field).map(Seconds)).transpose()
}

/// Planner estimates of a job. Entry k of `epoch_s[type]` (s) and `power_w[type]` (W) is for k + 1 GPUs; `null` is
/// left out.
fn estimates(
    entry: &JobEntry,
    rel_std: f64,
    at: &dyn Fn(&str) -> String,
) -> Result<Vec<Estimate>, InputError> {
    let times = required(entry.epoch_s.as_ref(), || at("epoch_s"))?;
    let powers = required(entry.power_w.as_ref(), || at("power_w"))?;
    let allowed = match &entry.allowed {
        None => None,
        Some(list) => {
            for (k, total) in list.iter().enumerate() {
                if *total == 0 || *total > MAX_NODE_GPUS * MAX_GANG {
                    return bad(at(&format!("allowed[{k}]")), format!("{total} GPUs are out of range"));
                }
            }
            Some(list.iter().copied().collect::<BTreeSet<u32>>())
        }
    };
    let mut rows = Vec::new();
    for (kind, list) in times {
        let Some(watts) = powers.get(kind) else {
            return bad(at(&format!("power_w.{kind}")), "is missing, but epoch_s has it");
        };
        for (k, time) in list.iter().enumerate() {
            let cell = |table: &str| at(&format!("{table}.{kind}[{k}]"));
            let Some(time) = time else { continue };
            let time = not_negative(*time, || cell("epoch_s"))?;
            let total = u32::try_from(k + 1).unwrap_or(u32::MAX);
            if allowed.as_ref().is_some_and(|a| !a.contains(&total)) {
                continue;
            }
            positive(time, || cell("epoch_s"))?;
            let Some(Some(power)) = watts.get(k) else {
                return bad(cell("power_w"), "is missing, but epoch_s has it");
            };
            rows.push(Estimate {
                gpu_type: kind.as_str().into(),
                gpus: GpuCount(total),
                epoch: Seconds(time),
                power: Watts(not_negative(*power, || cell("power_w"))?),
                draw: None,
                rel_std,
            });
        }
    }
    Ok(rows)
}

fn spread(entry: &JobEntry, at: &dyn Fn(&str) -> String) -> Result<Vec<MultiNodeEffect>, InputError> {
    let mut spans = BTreeMap::new();
    for (key, factor) in entry.spread.iter().flatten() {
        let field = || at(&format!("spread.{key}"));
        let Some(nodes) = key.parse::<u32>().ok().filter(|n| (1..=MAX_GANG).contains(n)) else {
            return bad(field(), format!("the key is not a number of nodes between 1 and {MAX_GANG}"));
        };
        let time_factor = positive(*factor, field)?;
        // On one node an epoch takes what the table says, whatever is written for 1.
        if nodes > 1 && spans.insert(nodes, MultiNodeEffect { nodes, time_factor }).is_some() {
            return bad(field(), "is there twice");
        }
    }
    Ok(spans.into_values().collect())
}

fn limits(entry: &JobEntry, at: &dyn Fn(&str) -> String) -> Result<Vec<LimitEffect>, InputError> {
    let mut limits = Vec::new();
    for (kind, rows) in entry.limits.iter().flatten() {
        for (k, (watts, time_factor, power_factor)) in rows.iter().enumerate() {
            let cell = |c: usize| at(&format!("limits.{kind}[{k}][{c}]"));
            limits.push(LimitEffect {
                gpu_type: kind.as_str().into(),
                limit: Watts(positive(*watts, || cell(0))?),
                time_factor: positive(*time_factor, || cell(1))?,
                power_factor: not_negative(*power_factor, || cell(2))?,
            });
        }
    }
    Ok(limits)
}

/// The jobs of a state. `tables` has those of all lines. `ran` says since when a job runs where an earlier decision put it.
pub fn jobs(
    state: &State,
    tables: &dyn Fn(&str) -> Option<Arc<Job>>,
    ran: &RunningJobs,
) -> Result<Vec<Job>, InputError> {
    if state.jobs.len() > MAX_JOBS {
        return bad("jobs", format!("{} are more than {MAX_JOBS}", state.jobs.len()));
    }
    let new_jobs: BTreeMap<&str, Listed<'_>> =
        listed("new_jobs", &state.new_jobs).map(|new| (new.entry.id.as_str(), new)).collect();
    let mut seen = BTreeSet::new();
    let mut jobs = Vec::with_capacity(state.jobs.len());
    for job in listed("jobs", &state.jobs) {
        let entry = job.entry;
        let at = |what: &str| job.path_of(what);
        if !seen.insert(entry.id.as_str()) {
            return bad(at("id"), format!("{:?} is there twice", entry.id));
        }
        let Some(table) = tables(&entry.id) else {
            return bad(at("id"), format!("{:?} is not known: no line had it in new_jobs", entry.id));
        };
        let given = Given { job, new: new_jobs.get(entry.id.as_str()).copied() };
        let lost = given.find(|e| e.lost_s).map(|(lost, of)| not_negative(lost, || of.path_of("lost_s")));
        let epochs_left = *required(entry.epochs_left.as_ref(), || at("epochs_left"))?;
        let min_run = entry.min_run_s.map_or(Ok(table.min_run.0), |s| not_negative(s, || at("min_run_s")))?;
        let state_now = job_state(state, &given, ran.get(entry.id.as_str()))?;
        let holds = given.find(|e| e.current.as_ref()?.as_ref()).is_some();
        let mut planned = Job {
            epochs_left: positive(epochs_left, || at("epochs_left"))?,
            movable: entry.movable.unwrap_or(table.movable),
            min_run: Seconds(min_run),
            lost: Seconds(lost.transpose()?.unwrap_or(0.0)),
            restart: restart(entry, || at("restart_s"))?.or(table.restart),
            restarts_last_day: given.find(|e| e.restarts_last_day).map_or(0, |(restarts, _)| restarts),
            promised: matches!(state_now, JobState::Starting { .. }) && !holds,
            state: state_now,
            ..Job::clone(&table)
        };
        if let Some((names, of)) = given.find(|e| e.forbidden.as_deref()) {
            for (k, name) in names.iter().enumerate() {
                class_of(state, name, || of.path_of(&format!("forbidden[{k}]")))?;
                planned.forbidden.push(name.as_str().into());
            }
        }
        jobs.push(planned);
    }
    Ok(jobs)
}

fn job_state(
    state: &State,
    given: &Given<'_>,
    ran: Option<&(Placement, Time)>,
) -> Result<JobState, InputError> {
    let is_placed = |entry: &JobEntry| matches!(entry.current, Some(Some(_)));
    let named = |entry: &JobEntry| entry.state.is_some() || is_placed(entry) || entry.target.is_some();
    // `null` empties what `new_jobs` says that it holds. A job that starts holds nothing yet.
    let emptied = matches!(given.job.entry.current, Some(None));
    let holds = |entry: &JobEntry| is_placed(entry) || entry.state.is_some_and(|s| s != StateName::Starting);
    // What a job does is one fact: if `jobs` says any of it, nothing of it is read from `new_jobs`.
    let read = |new: &Listed<'_>| !(named(given.job.entry) || emptied && holds(new.entry));
    let given = Given { job: given.job, new: given.new.filter(read) };
    let at = |field: &str| given.job.path_of(field);
    let placed =
        |(found, of): (&PlacementEntry, Listed<'_>), name: &str| place(state, found, &of.path_of(name));
    let current = given.find(|e| e.current.as_ref()?.as_ref());
    let current = current.map(|found| placed(found, "current")).transpose()?;
    let target = given.find(|e| e.target.as_ref()).map(|found| placed(found, "target")).transpose()?;
    let since = |placement: &Placement| -> Result<Time, InputError> {
        match (given.find(|e| e.since_s), ran) {
            (Some((since, of)), _) => not_negative(since, || of.path_of("since_s")).map(Time),
            (None, Some((there, since))) if there.same_gpus(placement) => Ok(*since),
            (None, _) => Ok(Time(state.now)),
        }
    };
    let gone_by = || {
        let found = given.find(|e| e.gone_by_s);
        found.map(|(gone_by, of)| not_negative(gone_by, || of.path_of("gone_by_s")).map(Time)).transpose()
    };
    let named = given.find(|e| e.state).map(|(name, _)| name);
    let name = named.unwrap_or(match current {
        Some(_) => StateName::Running,
        None => StateName::Waiting,
    });
    match (name, current) {
        (StateName::Waiting, None) => Ok(JobState::Waiting),
        (StateName::Waiting, Some(_)) => bad(at("current"), "a waiting job holds nothing"),
        (StateName::Running, Some(placement)) => {
            Ok(JobState::Running { since: since(&placement)?, placement })
        }
        (StateName::Running | StateName::Stopping, None) => bad(at("current"), "is missing"),
        // It has to leave what it holds, which nobody else gets before.
        (StateName::Starting, Some(holds)) if target.as_ref().is_some_and(|to| !to.same_gpus(&holds)) => {
            Ok(JobState::Stopping { holds, target, gone_by: gone_by()?.unwrap_or(Time(state.now)) })
        }
        (StateName::Starting, current) => match target.or(current) {
            Some(target) => Ok(JobState::Starting { since: since(&target)?, target }),
            None => bad(at("target"), "is missing"),
        },
        (StateName::Stopping, Some(holds)) => {
            let gone_by = *required(gone_by()?.as_ref(), || at("gone_by_s"))?;
            Ok(JobState::Stopping { holds, target, gone_by })
        }
    }
}

/// The placement of an entry whose path this is.
fn place(state: &State, entry: &PlacementEntry, path: &str) -> Result<Placement, InputError> {
    let at = |field: &str| format!("{path}.{field}");
    let names: &[String] = match (&entry.node, &entry.nodes) {
        (Some(node), None) => std::slice::from_ref(node),
        (None, Some(nodes)) => nodes,
        (Some(_), Some(_)) => return bad(at("nodes"), "there is node as well"),
        (None, None) => return bad(at("node"), "is missing"),
    };
    let field = |k: usize| if entry.node.is_some() { at("node") } else { at(&format!("nodes[{k}]")) };
    if names.len() > MAX_GANG as usize {
        return bad(at("nodes"), format!("more than {MAX_GANG} nodes"));
    }
    let mut class = None;
    let mut seen = BTreeSet::new();
    for (k, name) in names.iter().enumerate() {
        let (index, found) = class_of(state, name, || field(k))?;
        if class.is_some_and(|(first, _)| first != index) {
            return bad(field(k), "a gang stays in one class");
        }
        if !seen.insert(name) {
            return bad(field(k), format!("{name:?} is there twice"));
        }
        class = Some((index, found));
    }
    let Some((_, class)) = class else { return bad(at("nodes"), "there is none") };
    if entry.gpus == 0 || entry.gpus > class.gpus {
        return bad(at("gpus"), format!("{} is not between 1 and the node's {}", entry.gpus, class.gpus));
    }
    let limit = entry.limit_w.map(|w| positive(w, || at("limit_w"))).transpose()?;
    Ok(Placement {
        gpu_type: class.gpu_type.as_str().into(),
        nodes: names.iter().map(|n| NodeName::from(n.as_str())).collect(),
        gpus_per_node: GpuCount(entry.gpus),
        limit: limit.map(Watts),
    })
}

/// The class of a node. Only the spelling of decisions is known: `1/2`, not `01/2`.
fn class_of<'a>(
    state: &'a State,
    name: &str,
    field: impl FnOnce() -> String,
) -> Result<(usize, &'a ClassEntry), InputError> {
    let canonical = |text: &str| text == "0" || !(text.is_empty() || text.starts_with(['0', '+']));
    let found = name.split_once('/').filter(|(c, i)| canonical(c) && canonical(i)).and_then(|(c, i)| {
        let index = c.parse::<usize>().ok()?;
        let class = state.classes.get(index)?;
        (i.parse::<u32>().ok()? < class.count).then_some((index, class))
    });
    found.map_or_else(|| bad(field(), format!("no node is called {name:?}")), Ok)
}
