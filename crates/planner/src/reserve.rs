//! A reservation for the longest-waiting job, so that every job starts eventually at any load.
//!
//! Once a job's planning weight has stopped growing (ten times its weight) it goes to the front. If it still
//! does not fit, it reserves the nodes that will be free for it first. New jobs may use them only if they end
//! before that (EASY backfilling, Lifka 1995). There is one reservation at a time; more would empty the
//! cluster.

use crate::instance::{Assignment, Config, Demand, Holding, Instance, JobData};
use crate::partial::PartialPlan;

/// Capacity reserved for a job.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The job.
    pub job: usize,
    /// The reserved capacity, taken from the plan's ledger.
    pub assignment: Assignment,
    /// Seconds from now until it is expected to be free.
    pub ready: f64,
}

/// Reserves capacity for a job, if the cluster could ever hold it in one of the requested configurations.
pub fn reserve(
    instance: &Instance<'_>,
    partial: &mut PartialPlan,
    job: usize,
    configs: &[usize],
) -> Option<Reservation> {
    let data = &instance.jobs[job];
    if !data.job.movable && !matches!(data.holding, Holding::Nothing) {
        // Until it has left it is offered only what it held; afterwards it may need other capacity, or none.
        return None;
    }
    let (ready, assignment) = earliest(instance, partial, job, configs)?;
    partial.ledger.take(instance, job, &assignment);
    Some(Reservation { job, assignment, ready })
}

/// The assignment of a job that is free first, by the expected ends of running jobs. Its quota and its watts must be free too:
/// until then others may use the nodes.
fn earliest(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    job: usize,
    configs: &[usize],
) -> Option<(f64, Assignment)> {
    let data = &instance.jobs[job];
    // Known only for a configuration that an idle cluster could hold: many jobs may have none.
    let mut holders: Option<Holders<'_>> = None;
    let mut best: Option<(f64, i64, Assignment)> = None;
    let mut asked = configs.to_vec();
    asked.sort_unstable();
    for (i, config) in asked.into_iter().map(|i| (i, &data.configs[i])).filter(|(_, c)| c.offered) {
        if data.quota_demand.iter().any(|d| d.of_job(config) > instance.quotas[d.what]) {
            continue;
        }
        let gang = config.nodes as usize;
        let mut nodes = instance.types[config.kind].nodes.clone();
        nodes.retain(|node| instance.empty_node_fits(data, config, *node));
        let overhead = |node: &u32| instance.nodes[*node as usize].overhead_mw;
        let least = nodes.iter().map(overhead).min().unwrap_or(0) * i128::from(config.nodes);
        if nodes.len() < gang || !power_could_fit(instance, config, least) {
            continue;
        }
        let holders = holders.get_or_insert_with(|| Holders::new(instance, partial));
        let ready_at = |node: u32| ready_at(instance, partial, (data, config.gpus), node, holders);
        let mut ready: Vec<(f64, u32)> = nodes.into_iter().map(|node| (ready_at(node), node)).collect();
        ready.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if gang > 1 {
            // The class that has enough nodes first.
            let class_of = |node: u32| instance.nodes[node as usize].gang_class;
            let mut counts = std::collections::BTreeMap::new();
            let complete = ready.iter().map(|(_, node)| class_of(*node)).find(|class| {
                let count = counts.entry(*class).or_insert(0);
                *count += 1;
                *count == gang
            });
            let Some(class) = complete else { continue };
            ready.retain(|(_, node)| class_of(*node) == class);
        }
        ready.truncate(gang);
        let nodes: Vec<u32> = ready.iter().map(|(_, n)| *n).collect();
        if !power_could_fit(instance, config, nodes.iter().map(overhead).sum()) {
            continue;
        }
        let assignment = Assignment { config: i, nodes: nodes.into() };
        let (quota, power) = (
            quota_ready(instance, partial, (data, config), holders),
            power_ready(instance, partial, (data, config), assignment.nodes.as_slice(), holders),
        );
        let at = ready.last().map_or(0.0, |(at, _)| *at).max(quota).max(power);
        let gpus = config.total_gpus();
        let better = best.as_ref().is_none_or(|(t, g, _)| at.total_cmp(t).then(gpus.cmp(g)).is_lt());
        if better {
            best = Some((at, gpus, assignment));
        }
    }
    best.map(|(ready, _, assignment)| (ready, assignment))
}

/// Who holds what until when.
struct Holders<'a> {
    /// By node: expected end, holder and its GPUs there; in order.
    on: Vec<Vec<(f64, usize, i64)>>,
    /// Expected end, holder and what it holds; in order.
    all: Vec<(f64, usize, &'a Assignment)>,
}

impl<'a> Holders<'a> {
    fn new(instance: &'a Instance<'_>, partial: &'a PartialPlan) -> Self {
        #[cfg(test)]
        tests::COUNTED.set(tests::COUNTED.get() + 1);
        let mut holders = Self { on: vec![Vec::new(); instance.nodes.len()], all: Vec::new() };
        let mut add = |job: usize, assignment: &'a Assignment, end: f64| {
            let config = &instance.jobs[job].configs[assignment.config];
            for &node in assignment.nodes.as_slice() {
                holders.on[node as usize].push((end, job, config.gpus));
            }
            holders.all.push((end, job, assignment));
        };
        for (job, data) in instance.jobs.iter().enumerate() {
            if let Some(assignment) = &partial.assignments[job] {
                add(job, assignment, data.configs[assignment.config].time);
            }
            if let Some(assignment) = data.leaving() {
                add(job, assignment, data.gone_in(instance.now));
            }
        }
        for list in &mut holders.on {
            list.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        holders.all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        holders
    }
}

/// Time when a node can hold a worker with these GPUs; it could if it were idle.
fn ready_at(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    (data, gpus): (&JobData<'_>, i64),
    node: u32,
    holders: &Holders<'_>,
) -> f64 {
    let holders = &holders.on[node as usize];
    let enough =
        |d: &Demand, back: i128| partial.ledger.left(instance, node, d.what) + back >= d.of_worker(gpus);
    let mut when = 0.0;
    for count in 0..=holders.len() {
        let gone = &holders[..count];
        if let Some((end, _, _)) = gone.last() {
            when = *end;
        }
        let gpus_back: i64 = gone.iter().map(|h| h.2).sum();
        let back = |what: usize| -> i128 {
            let of = |(_, holder, held): &(f64, usize, i64)| {
                let demand = &instance.jobs[*holder].node_demand;
                demand.iter().filter(|d| d.what == what).map(|d| d.of_worker(*held)).sum::<i128>()
            };
            gone.iter().map(of).sum()
        };
        let fits = partial.ledger.free_gpus(node) + gpus_back >= gpus
            && data.node_demand.iter().all(|d| enough(d, back(d.what)));
        if fits {
            return when;
        }
    }
    // A restart in place was counted once but its parts were released twice: cap the result.
    when
}

/// Time when the namespace's own jobs have left enough of its quota.
fn quota_ready(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    (data, config): (&JobData<'_>, &Config),
    holders: &Holders<'_>,
) -> f64 {
    let lacking = |d: &Demand| (d.what, d.of_job(config) - partial.ledger.quota_left(d.what));
    let mut lacking: Vec<(usize, i128)> =
        data.quota_demand.iter().map(lacking).filter(|(_, lacks)| *lacks > 0).collect();
    let mut when = 0.0;
    if lacking.is_empty() {
        return when;
    }
    let demands = |holder: usize| instance.jobs[holder].quota_demand.iter();
    let own = |holder: usize| demands(holder).any(|d| lacking.iter().any(|(what, _)| d.what == *what));
    let ends: Vec<_> = holders.all.iter().filter(|(_, holder, _)| own(*holder)).copied().collect();
    for (end, holder, held) in ends {
        when = end;
        for (what, lacks) in &mut lacking {
            let of = demands(holder).filter(|d| d.what == *what);
            *lacks -= of.map(|d| d.of_job(&instance.jobs[holder].configs[held.config])).sum::<i128>();
        }
        if lacking.iter().all(|(_, lacks)| *lacks <= 0) {
            break;
        }
    }
    when
}

/// Time when jobs that end, or a higher budget, leave watts enough for a configuration on these nodes.
fn power_ready(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    (data, config): (&JobData<'_>, &Config),
    nodes: &[u32],
    holders: &Holders<'_>,
) -> f64 {
    let grace = data.job.grace;
    let Some(budget) = &instance.snapshot.budget else { return 0.0 };
    let mut needed = partial.ledger.power_after_start_mw(instance, config, nodes);
    let within =
        |after: f64, needed: i128| instance.budget_mw_at(after, grace).is_none_or(|most| needed <= most);
    if within(0.0, needed) {
        return 0.0;
    }
    // While the budget is exceeded, what leaves is not in the sum, and nothing of it comes back.
    let counted = |(_, holder, held): &(f64, usize, &Assignment)| {
        let own = partial.assignments[*holder].as_ref();
        !instance.above_budget || own.is_some_and(|own| std::ptr::eq(own, *held))
    };
    let mut workers = vec![0_usize; instance.nodes.len()];
    for (_, _, held) in holders.all.iter().filter(|one| counted(one)) {
        held.nodes.as_slice().iter().for_each(|node| workers[*node as usize] += 1);
    }
    let mut changes = budget.watts.windows().iter().map(|(begin, _)| begin.0 - instance.now).peekable();
    let mut when = 0.0;
    for (end, holder, held) in holders.all.iter().filter(|one| counted(one)) {
        let end = *end;
        while let Some(begin) = changes.next_if(|begin| *begin <= end) {
            if begin > 0.0 && within(begin, needed) {
                return begin;
            }
        }
        let mut overhead = 0;
        for &node in held.nodes.as_slice() {
            let left = &mut workers[node as usize];
            *left = left.saturating_sub(1);
            if *left == 0 && !nodes.contains(&node) {
                overhead += instance.nodes[node as usize].overhead_mw;
            }
        }
        needed -= instance.alone_mw(&instance.jobs[*holder].configs[held.config], overhead);
        when = end;
        if within(end, needed) {
            return end;
        }
    }
    changes.find(|begin| *begin > when && within(*begin, needed)).unwrap_or(when)
}

/// Whether the budget could hold a configuration, on nodes with this overhead together, if no other job of ours ran.
fn power_could_fit(instance: &Instance<'_>, config: &Config, overhead_mw: i128) -> bool {
    let Some(allowed) = instance.budget_mw else { return true };
    instance.floor_mw + instance.alone_mw(config, overhead_mw) <= allowed
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use andreas_model::JobId;
    use serde_json::json;

    use crate::partial::PartialPlan;
    use crate::{MethodName, Options, Snapshot, budget, plan};

    thread_local! {
        /// How often holders were listed, which takes time for all jobs and nodes.
        pub(super) static COUNTED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn nodes_reserved_for_a_job_that_waits_for_watts_serve_short_jobs_until_then() {
        // Given three nodes, two runs for another hour and one for ten days, a fully aged job that needs the watts of both short runs,
        // the overhead of their nodes included, and an idle node,
        let job = |name: &str, submit: f64, epoch: f64, watts: f64, state: serde_json::Value| {
            json!({"id": format!("t/{name}"), "namespace": "t", "submit": submit, "weight": if name == "aged" { 1e-4 } else { 1e-2 },
                   "epochs_left": 1.0, "estimates": [{"gpu_type": "A", "gpus": 4, "epoch": epoch, "power": watts}],
                   "movable": false, "worker": {}, "state": state})
        };
        let runs = |node: &str| json!({"Running": {"since": 990_000.0, "placement": {"gpu_type": "A", "gpus_per_node": 4, "nodes": [node]}}});
        let node = |name: &str| json!({"name": name, "gpu_type": "A", "gpus": 4, "free_gpus": 4, "host_idle": 100.0, "host_busy": 300.0, "free": {}});
        // Idle: 4 x 300 W. Running: 2 x (500 - 200 + 200) W and 1,000 - 200 + 200 W. The aged one adds 1,600 - 200 + 200 W,
        // and the short one 500 W.
        let budget = 1_200.0 + 2.0 * 500.0 + 1_000.0 + 650.0;
        for (short, starts) in [(1_800.0, true), (7_200.0, false), (86_400.0 * 9.0, false)] {
            let snapshot: Snapshot = serde_json::from_value(json!({
                "now": 1e6, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
                "lateness": {"turnaround_share": 0.1, "aging": 3600.0}, "budget": {"watts": [[0.0, budget]]},
                "nodes": [node("n1"), node("n2"), node("n3"), node("n4")],
                "namespaces": [], "jobs": [
                    job("first", 989_000.0, 3_600.0, 500.0, runs("n1")),
                    job("second", 989_000.0, 3_600.0, 500.0, runs("n2")),
                    job("long", 989_000.0, 864_000.0, 1_000.0, runs("n3")),
                    job("aged", 0.0, 3_600.0, 1_600.0, json!("Waiting")),
                    job("short", 999_000.0, short, 500.0, json!("Waiting"))]}))
            .expect("a snapshot");
            for method in MethodName::ALL {
                let planned = plan(&snapshot, &Options { method, ..Options::default() }).expect("a plan");
                let started = |name: &str| planned.jobs[&JobId::new(name)].decision.placement().is_some();
                assert!(!started("t/aged"), "{method}: it has no watts");
                assert_eq!(started("t/short"), starts, "{method}, {short} s");
            }
        }
    }

    #[test]
    fn a_job_that_leaves_while_the_budget_is_exceeded_gives_no_watts_back_that_nobody_counts() {
        // Given a budget of 2,400 W: 1,200 W idle, 1,000 W of a job that is gone in a minute, and 500 W of one that ends in
        // an hour,
        let on = |node: &str| json!({"gpu_type": "A", "gpus_per_node": 4, "nodes": [node]});
        let job = |name: &str, watts: f64, state: serde_json::Value| {
            json!({"id": format!("t/{name}"), "namespace": "t", "submit": 0.0, "weight": 1e-4, "epochs_left": 1.0,
                   "estimates": [{"gpu_type": "A", "gpus": 4, "epoch": 3600.0, "power": watts}],
                   "worker": {}, "state": state})
        };
        let node = |name: &str| json!({"name": name, "gpu_type": "A", "gpus": 4, "free_gpus": 4, "host_idle": 100.0, "host_busy": 300.0, "free": {}});
        let snapshot: Snapshot = serde_json::from_value(json!({
            "now": 1e6, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
            "lateness": {"turnaround_share": 0.1, "aging": 3600.0}, "budget": {"watts": [[0.0, 2_400.0]]},
            "nodes": [node("n1"), node("n2"), node("n3"), node("n4")], "namespaces": [], "jobs": [
                job("leaves", 1_000.0, json!({"Stopping": {"holds": on("n1"), "target": null, "gone_by": 1_000_060.0}})),
                job("runs", 500.0, json!({"Running": {"since": 990_000.0, "placement": on("n2")}})),
                job("waits", 900.0, json!("Waiting"))]}))
        .expect("a snapshot");
        let instance = budget::prepared(&snapshot);
        assert!(instance.above_budget);
        // when capacity is reserved for one that adds 900 W,
        let mut partial = PartialPlan::new(&instance, |_, _| true);
        let job = instance.jobs.iter().position(|data| data.job.id.as_str() == "t/waits").expect("it waits");
        let configs: Vec<usize> = (0..instance.jobs[job].configs.len()).collect();
        let kept = super::reserve(&instance, &mut partial, job, &configs).expect("a reservation");
        // then it is ready once the one that runs has ended.
        assert!((kept.ready - 3_600.0).abs() < 1.0, "{}", kept.ready);
    }

    #[test]
    fn many_jobs_that_can_never_run_cost_no_list_of_holders_each() {
        // Given fully aged jobs: without quota, with too much memory, and with more watts than there are,
        let job = |name: String, watts: f64, memory: u64| {
            json!({"id": format!("t/{name}"), "namespace": "t", "submit": 0.0, "weight": 1e-4, "epochs_left": 1.0,
                   "estimates": [{"gpu_type": "A", "gpus": 4, "epoch": 3600.0, "power": watts}],
                   "worker": {"fixed": {"memory_bytes": memory}, "quota_per_gpu": {"q/gpu": 1}}, "state": "Waiting"})
        };
        let ever = |quota: u32| -> Snapshot {
            let mut jobs = vec![];
            for i in 0..20 {
                jobs.push(job(format!("watts{i}"), 1e5, 1));
                jobs.push(job(format!("memory{i}"), 400.0, 1 << 40));
                if quota == 0 {
                    jobs.push(job(format!("quota{i}"), 400.0, 1));
                }
            }
            serde_json::from_value(json!({
                "now": 1e6, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
                "lateness": {"turnaround_share": 0.1, "aging": 3600.0}, "budget": {"watts": [[0.0, 5000.0]]},
                "nodes": [{"name": "n", "gpu_type": "A", "gpus": 8, "free_gpus": 8, "free": {"memory_bytes": 1 << 30}}],
                "namespaces": [{"name": "t", "quota": {"q/gpu": quota}}], "jobs": jobs,
            }))
            .expect("a snapshot")
        };
        for method in MethodName::ALL {
            for quota in [0, 8] {
                COUNTED.set(0);
                let options = Options { method, ..Options::default() };
                plan(&ever(quota), &options).expect("a plan");
                assert_eq!(COUNTED.get(), 0, "{method}, quota {quota}");
            }
        }
    }
}
