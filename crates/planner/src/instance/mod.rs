//! The snapshot compiled for the methods: names become indices, tables become configurations with times and
//! watts. Everything is sorted by name, so the order of the input never affects the plan.

mod ahead;
mod cluster;
mod data;
mod jobs;

use std::collections::BTreeMap;

use andreas_model::{GpuType, NodeName, Seconds, Time, Watts};

use crate::cost::PriceOverTime;
use crate::snapshot::{Job, JobState, Placement, Snapshot};
use cluster::{Names, Sets, compile_nodes, compile_quotas, compile_types, floor_mw, link};
use jobs::JobContext;

pub(crate) use ahead::{LowerWindow, least_ahead};
pub(crate) use cluster::UNLIMITED;
pub(crate) use data::Demand;
pub use data::{Assignment, Config, Holding, JobData, NodeData, Nodes, TypeData};

/// A snapshot compiled for the methods: its jobs, nodes and GPU types are indices into these lists.
pub struct Instance<'a> {
    /// The snapshot itself.
    pub snapshot: &'a Snapshot,
    /// The instant of the decision, seconds since the snapshot's origin.
    pub now: f64,
    pub(crate) prices: PriceOverTime,
    /// GPU types by name, and one more for placements on GPUs of unknown type.
    pub types: Vec<TypeData>,
    /// Nodes by name.
    pub nodes: Vec<NodeData>,
    /// Jobs by name.
    pub jobs: Vec<JobData<'a>>,
    /// Number of node resources.
    pub(crate) kinds: usize,
    /// Free amounts, `node * kinds + kind`.
    pub(crate) resources: Vec<i128>,
    pub(crate) quotas: Vec<i128>,
    /// Bit sets of nodes; the first has all nodes.
    sets: Vec<Vec<u64>>,
    /// Draw without any of our jobs, in milliwatts.
    pub(crate) floor_mw: i128,
    /// Lower budgets that some jobs could not be gone by, in order.
    pub(crate) lower_windows: Vec<LowerWindow>,
    /// Budget less margin, in milliwatts of nodes and GPUs.
    pub(crate) budget_mw: Option<i128>,
    /// Maximum draw of a plan, in milliwatts: the budget, or less while leaving jobs draw above it; `None`:
    /// power is not limited.
    pub allowed_mw: Option<i128>,
    /// More is held than the budget allows, and some of it is leaving.
    pub above_budget: bool,
}

/// Nodes that are looked at beside those that are wanted.
const FEW_NODES: usize = 8;

impl<'a> Instance<'a> {
    /// Compiles a snapshot that passed [`Snapshot::check`]. Methods take [`crate::budget::prepared`].
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        let mut types = compile_types(snapshot);
        let kind_of: BTreeMap<GpuType, usize> =
            types.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let mut names = Names::default();
        let (mut nodes, resources) = compile_nodes(snapshot, &kind_of, &mut names);
        link(&mut types, &mut nodes);
        let (quotas, quota_of) = compile_quotas(snapshot);
        let mut instance = Self {
            snapshot,
            now: snapshot.now.0,
            prices: PriceOverTime::new(snapshot),
            floor_mw: floor_mw(snapshot, &types, &nodes),
            types,
            nodes,
            jobs: Vec::with_capacity(snapshot.jobs.len()),
            kinds: names.kinds(),
            resources,
            quotas,
            sets: vec![Vec::new()],
            lower_windows: lower_windows(snapshot),
            budget_mw: None,
            allowed_mw: None,
            above_budget: false,
        };
        instance.budget_mw = instance.budget_mw_at(0.0, Seconds::ZERO);
        instance.allowed_mw = instance.budget_mw;
        let by_name: BTreeMap<NodeName, u32> =
            instance.nodes.iter().zip(0..).map(|(n, i)| (n.name.clone(), i)).collect();
        let mut sets = Sets { by_name: &by_name, known: BTreeMap::new(), sets: &mut instance.sets };
        let mut order: Vec<&Job> = snapshot.jobs.iter().collect();
        order.sort_by(|a, b| a.id.cmp(&b.id));
        let intended: BTreeMap<_, _> = snapshot.intended.iter().map(|change| (&change.job, change)).collect();
        let context = JobContext {
            snapshot,
            types: &instance.types,
            kind_of: &kind_of,
            by_name: &by_name,
            quota_of: &quota_of,
            prices: &instance.prices,
            names: &names,
            intended: &intended,
            lower_windows: &instance.lower_windows,
        };
        instance.jobs = order
            .into_iter()
            .map(|job| {
                let admits = sets.index_of(job, snapshot.nodes.len());
                context.compile(job, admits)
            })
            .collect();
        instance
    }

    /// Number of different node sets, including the set of all nodes.
    pub(crate) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Whether a node set contains a node.
    pub(crate) fn admits(&self, set: usize, node: u32) -> bool {
        set == 0 || self.sets[set][node as usize / 64] >> (node % 64) & 1 == 1
    }

    /// Whether a node could hold a worker if no job of ours ran there.
    pub(crate) fn empty_node_fits(&self, data: &JobData<'_>, config: &Config, node: u32) -> bool {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let at = node as usize * self.kinds;
        let enough = |d: &Demand| d.of_worker(config.gpus) <= self.resources[at + d.what];
        self.nodes[node as usize].free_gpus >= config.gpus
            && self.admits(data.admits, node)
            && data.node_demand.iter().all(enough)
    }

    /// Whether the first of these nodes are as many as wanted that fit a configuration, if no job of ours ran there. Nearly always they are;
    /// else all nodes must be looked at, which is done once for all configurations.
    pub(crate) fn first_nodes_fit(
        &self,
        data: &JobData<'_>,
        (config, wanted): (&Config, usize),
        nodes: &[u32],
    ) -> bool {
        let first =
            nodes.iter().take(wanted + FEW_NODES).filter(|node| self.empty_node_fits(data, config, **node));
        let mut first = first.map(|node| self.nodes[*node as usize].gang_class);
        let Some(class) = first.next() else { return false };
        1 + first.filter(|other| *other == class).count() >= wanted
    }

    /// GPUs of the largest worker of a job that a node could hold if no job of ours ran there; -1: not even one without
    /// GPUs. What a worker takes grows with its GPUs.
    pub(crate) fn largest_worker(&self, data: &JobData<'_>, node: u32) -> i64 {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        if !self.admits(data.admits, node) {
            return -1;
        }
        let at = node as usize * self.kinds;
        let fits =
            |gpus: i64| data.node_demand.iter().all(|d| d.of_worker(gpus) <= self.resources[at + d.what]);
        let (mut fitting, mut beyond) = (-1, self.nodes[node as usize].free_gpus.max(-1) + 1);
        if fits(beyond - 1) {
            return beyond - 1;
        }
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        fitting
    }

    /// Whether the cluster could hold a job so if no job of ours ran, on nodes of one class.
    pub fn could_hold(&self, data: &JobData<'_>, config: &Config) -> bool {
        let mut of_class: BTreeMap<u32, u32> = BTreeMap::new();
        let nodes = self.types[config.kind].nodes.iter();
        nodes.filter(|node| self.empty_node_fits(data, config, **node)).any(|node| {
            let count = of_class.entry(self.nodes[*node as usize].gang_class).or_insert(0);
            *count += 1;
            *count == config.nodes
        })
    }

    /// Milliwatts above the floor of a configuration that runs alone, on nodes with this overhead together.
    pub(crate) fn alone_mw(&self, config: &Config, overhead_mw: i128) -> i128 {
        config.draw_mw() - self.types[config.kind].idle_mw * i128::from(config.total_gpus()) + overhead_mw
    }

    /// Milliwatts that a job adds somewhere to the draw of idle GPUs, without the overhead of nodes.
    pub(crate) fn own_mw(&self, job: usize, assignment: &Assignment) -> i128 {
        let config = &self.jobs[job].configs[assignment.config];
        let kinds = assignment.nodes.as_slice().iter().map(|node| self.nodes[*node as usize].kind);
        let idle: i128 = kinds.map(|kind| self.types[kind].idle_mw * i128::from(config.gpus)).sum();
        config.draw_mw() - idle
    }

    /// The least budget less margin from `after` seconds from now on and for as long as a stop takes, in milliwatts of
    /// nodes and GPUs; `None`: power is not limited.
    pub(crate) fn budget_mw_at(&self, after: f64, grace: Seconds) -> Option<i128> {
        let budget = self.snapshot.budget.as_ref()?;
        let from = Time(self.now + after);
        let within = budget.watts.pieces(from, from + grace).map(|(_, _, watts)| watts.0);
        let least = within.chain(budget.watts.at(from).map(|watts| watts.0)).fold(f64::INFINITY, f64::min);
        Some(budget.for_plans_mw(least))
    }

    /// Converts budgeted power to the scope of the budget.
    pub(crate) fn in_scope(&self, milliwatts: i128) -> Watts {
        let factor = self.snapshot.budget.as_ref().map_or(1.0, |b| b.scope_factor);
        Watts(milliwatts as f64 / 1e3 * factor)
    }

    /// Money for a constant draw in watts from now on, for this many seconds.
    pub fn energy_cost(&self, watts: f64, seconds: f64) -> f64 {
        self.prices.energy_cost(watts, seconds)
    }

    /// Converts an assignment to names.
    pub fn placement(&self, job: usize, assignment: &Assignment) -> Placement {
        let data = &self.jobs[job];
        // An unchanged placement is returned as given, also on nodes that are no longer known.
        if data.current() == Some(assignment) {
            match &data.job.state {
                JobState::Running { placement: p, .. }
                | JobState::Starting { target: p, .. }
                | JobState::Stopping { target: Some(p), .. } => return p.clone(),
                JobState::Stopping { target: None, .. } | JobState::Waiting => {}
            }
        }
        let config = &data.configs[assignment.config];
        Placement {
            gpu_type: self.types[config.kind].name.clone(),
            nodes: assignment.nodes.as_slice().iter().map(|n| self.nodes[*n as usize].name.clone()).collect(),
            gpus_per_node: andreas_model::GpuCount(u32::try_from(config.gpus).unwrap_or(u32::MAX)),
            limit: config.limit.map(Watts),
        }
    }
}

impl Instance<'_> {
    /// Time of the next change of budget or tariff that a plan must react to: a change of the budget counts for each
    /// job with GPUs from its grace period before it.
    pub(crate) fn next_edge(&self, assignments: &[Option<Assignment>]) -> Option<Time> {
        let now = self.snapshot.now;
        let tariff = self.snapshot.tariff.next_edge(now);
        let graces = self.jobs.iter().zip(assignments).filter_map(|(data, assignment)| {
            let has_gpus = assignment.is_some() || !matches!(data.holding, Holding::Nothing);
            has_gpus.then(|| data.job.grace.0.to_bits())
        });
        let mut graces: Vec<u64> = graces.chain([0.0_f64.to_bits()]).collect();
        graces.sort_unstable();
        graces.dedup();
        let edges = self.snapshot.budget.iter().flat_map(|budget| {
            graces.iter().filter_map(|bits| {
                let grace = Seconds(f64::from_bits(*bits));
                Some((budget.watts.next_edge(now + grace)? - grace).max(now))
            })
        });
        tariff.into_iter().chain(edges).min_by(Time::total_cmp)
    }
}

/// The lower budgets ahead that some job of a snapshot could not be gone by.
fn lower_windows(snapshot: &Snapshot) -> Vec<LowerWindow> {
    let Some(budget) = &snapshot.budget else { return Vec::new() };
    let longest = snapshot.jobs.iter().map(|job| job.longest_stop(snapshot.now)).fold(0.0, f64::max);
    ahead::lower_windows(budget, snapshot.now, Seconds(longest))
}

#[cfg(test)]
thread_local! {
    /// How often a worker was held against a node.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
