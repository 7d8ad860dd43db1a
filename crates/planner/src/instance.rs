//! The snapshot compiled for the methods: names become numbers, tables become configurations with times and
//! watts, everything sorted by name, so that the order of the input never shows in a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::{GpuType, NodeName, Seconds, Time, Watts};

use crate::cost::PriceOverTime;
use crate::snapshot::{Job, JobState, Placement, Preemption, Resources, Snapshot};

/// Kinds of node resources with fixed numbers; the others follow.
const CPU: usize = 0;
const MEMORY: usize = 1;
const PODS: usize = 2;
/// Stands for "not limited": far above any amount, far below overflow.
const UNLIMITED: i128 = 1 << 100;
/// Planning weights grow with age at most to this multiple.
const OLDEST: f64 = 10.0;

/// Power in whole milliwatts. Integers make adding and taking off exact, so a ledger never drifts.
pub(crate) fn milliwatts(watts: f64) -> i128 {
    libm::ceil(watts * 1e3) as i128
}

pub(crate) struct NodeData {
    pub name: NodeName,
    pub kind: usize,
    /// Position among the nodes of its type.
    pub rank: usize,
    pub free_gpus: i64,
    pub overhead: f64,
    pub overhead_mw: i128,
}

pub(crate) struct TypeData {
    pub name: GpuType,
    pub idle_mw: i128,
    pub max: f64,
    /// Its nodes, by name.
    pub nodes: Vec<u32>,
    /// Most GPUs of ours in one of its nodes.
    pub widest: i64,
    /// Least overhead of one of its nodes, watts.
    pub overhead: f64,
}

/// One way to run a job.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub kind: usize,
    pub nodes: u32,
    /// GPUs on each node.
    pub gpus: i64,
    pub limit: Option<f64>,
    /// Seconds for all that is left.
    pub time: f64,
    /// Watts of all its GPUs.
    pub power: f64,
    pub power_mw: i128,
    pub rel_std: f64,
    /// Whether the job may be given it (false: only because it holds it now).
    pub offered: bool,
}

impl Config {
    pub fn total_gpus(&self) -> i64 {
        i64::from(self.nodes) * self.gpus
    }
}

/// What a job takes of one thing, by worker, GPU and gang.
pub(crate) struct Demand {
    pub what: usize,
    pub fixed: i128,
    pub per_gpu: i128,
    pub per_gang: i128,
}

impl Demand {
    pub fn of_worker(&self, gpus: i64) -> i128 {
        self.fixed + self.per_gpu * i128::from(gpus)
    }

    pub fn of_job(&self, config: &Config) -> i128 {
        self.of_worker(config.gpus) * i128::from(config.nodes)
            + if config.nodes > 1 { self.per_gang } else { 0 }
    }
}

/// A configuration on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub config: usize,
    pub nodes: Nodes,
}

/// Nodes of a job; nearly always one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    One(u32),
    Many(Box<[u32]>),
}

impl Nodes {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(node) => std::slice::from_ref(node),
            Self::Many(nodes) => nodes,
        }
    }
}

/// What a job holds at the instant of the decision.
pub(crate) enum Holding {
    Nothing,
    /// Runs there; may be moved if `free_to_move`.
    Running {
        spot: Spot,
        free_to_move: bool,
    },
    /// Committed to start there.
    Committed {
        target: Spot,
        leaving: Option<Spot>,
    },
    /// Stops; where it goes is open.
    Leaving {
        spot: Spot,
    },
}

pub(crate) struct JobData<'a> {
    pub job: &'a Job,
    pub configs: Vec<Config>,
    /// Money per second late, aged.
    pub weight: f64,
    /// Part of the weight that a second in the system costs.
    pub share: f64,
    /// Infinite without deadline.
    pub deadline: f64,
    /// Has waited so long that its weight grows no further: served first.
    pub overdue: bool,
    pub holding: Holding,
    /// Index of its set of nodes.
    pub admits: usize,
    pub node_demand: Vec<Demand>,
    pub quota_demand: Vec<Demand>,
    /// Money that a change of nodes or GPUs costs.
    pub change: f64,
    /// Time on its fastest and slowest configuration; infinite and zero without any.
    pub fastest: f64,
    pub slowest: f64,
}

impl JobData<'_> {
    /// Where it runs or is committed to run.
    pub fn present(&self) -> Option<&Spot> {
        match &self.holding {
            Holding::Running { spot, .. } | Holding::Committed { target: spot, .. } => Some(spot),
            Holding::Nothing | Holding::Leaving { .. } => None,
        }
    }

    /// What it holds but is giving up.
    pub fn leaving(&self) -> Option<&Spot> {
        match &self.holding {
            Holding::Leaving { spot } | Holding::Committed { leaving: Some(spot), .. } => Some(spot),
            _ => None,
        }
    }
}

pub(crate) struct Instance<'a> {
    pub snapshot: &'a Snapshot,
    pub now: f64,
    pub prices: PriceOverTime,
    pub types: Vec<TypeData>,
    pub nodes: Vec<NodeData>,
    pub jobs: Vec<JobData<'a>>,
    /// Kinds of node resources.
    pub kinds: usize,
    /// Free amounts, `node * kinds + kind`.
    pub resources: Vec<i128>,
    pub quotas: Vec<i128>,
    /// Bit sets of nodes; the first is all.
    sets: Vec<Vec<u64>>,
    /// Draw without any job of ours.
    pub floor_mw: i128,
    /// Budget less margin, in watts of nodes and GPUs.
    pub allowed_mw: Option<i128>,
}

impl<'a> Instance<'a> {
    /// Compiles a snapshot that passed its check.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let types = compile_types(snapshot);
        let kind_of: BTreeMap<GpuType, usize> =
            types.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let mut names = Names::default();
        let (nodes, resources) = compile_nodes(snapshot, &kind_of, &mut names);
        let mut instance = Self {
            snapshot,
            now: snapshot.now.0,
            prices: PriceOverTime::new(snapshot),
            types,
            nodes,
            jobs: Vec::with_capacity(snapshot.jobs.len()),
            kinds: names.kinds(),
            resources,
            quotas: Vec::new(),
            sets: vec![Vec::new()],
            floor_mw: 0,
            allowed_mw: None,
        };
        instance.link_types();
        instance.compile_power();
        let quota_of = instance.compile_quotas();
        let by_name: BTreeMap<NodeName, u32> =
            instance.nodes.iter().zip(0..).map(|(n, i)| (n.name.clone(), i)).collect();
        let mut sets = Sets { by_name: &by_name, known: BTreeMap::new(), sets: &mut instance.sets };
        let mut order: Vec<&Job> = snapshot.jobs.iter().collect();
        order.sort_by(|a, b| a.id.cmp(&b.id));
        let context = JobContext {
            snapshot,
            types: &instance.types,
            kind_of: &kind_of,
            by_name: &by_name,
            quota_of: &quota_of,
            prices: &instance.prices,
            names: &names,
        };
        instance.jobs = order
            .into_iter()
            .map(|job| {
                let admits = sets.of(job, snapshot.nodes.len());
                context.compile(job, admits)
            })
            .collect();
        instance
    }

    fn link_types(&mut self) {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let kind = &mut self.types[node.kind];
            node.rank = kind.nodes.len();
            kind.nodes.push(u32::try_from(i).expect("the number of nodes is checked"));
            kind.widest = kind.widest.max(node.free_gpus);
            kind.overhead = kind.overhead.min(node.overhead);
        }
    }

    fn compile_power(&mut self) {
        let by_name: BTreeMap<_, _> = self.snapshot.nodes.iter().map(|n| (&n.name, n)).collect();
        for node in &self.nodes {
            let kind = &self.types[node.kind];
            let source = by_name[&node.name];
            let foreign_gpus = f64::from(source.gpus.0 - source.free_gpus.0);
            let foreign = source.foreign_power.map_or(foreign_gpus * kind.max, |w| w.0);
            self.floor_mw += milliwatts(foreign) + kind.idle_mw * i128::from(node.free_gpus);
        }
        if let Some(budget) = &self.snapshot.budget {
            let now = self.snapshot.now;
            let least = budget
                .watts
                .pieces(now, now + budget.look_ahead)
                .map(|(_, _, w)| w)
                .chain(budget.watts.at(now))
                .fold(f64::INFINITY, |least, w| least.min(w.0));
            let watts = least * (1.0 - budget.margin) / budget.scope_factor;
            self.allowed_mw = Some(libm::floor(watts * 1e3) as i128);
        }
    }

    fn compile_quotas(&mut self) -> BTreeMap<(String, Arc<str>), usize> {
        let mut index = BTreeMap::new();
        let mut namespaces: Vec<_> = self.snapshot.namespaces.iter().collect();
        namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        for namespace in namespaces {
            for (key, left) in &namespace.quota {
                index.insert((namespace.name.as_str().to_owned(), key.clone()), self.quotas.len());
                self.quotas.push(i128::from(*left));
            }
        }
        index
    }

    /// Whether a node is in a job's set.
    pub fn admits(&self, set: usize, node: u32) -> bool {
        set == 0 || self.sets[set][node as usize / 64] >> (node % 64) & 1 == 1
    }

    /// What budgeted power becomes in the scope of the budget.
    pub fn in_scope(&self, milliwatts: i128) -> Watts {
        let factor = self.snapshot.budget.as_ref().map_or(1.0, |b| b.scope_factor);
        Watts(milliwatts as f64 / 1e3 * factor)
    }

    /// A spot by names.
    pub fn placement(&self, job: usize, spot: &Spot) -> Placement {
        let data = &self.jobs[job];
        // What is kept is kept to the letter, also where a node is no longer known.
        if data.present() == Some(spot) {
            match &data.job.state {
                JobState::Running { placement: p, .. }
                | JobState::Starting { target: p, .. }
                | JobState::Stopping { target: Some(p), .. } => return p.clone(),
                JobState::Stopping { target: None, .. } | JobState::Waiting => {}
            }
        }
        let config = &data.configs[spot.config];
        Placement {
            gpu_type: self.types[config.kind].name.clone(),
            nodes: spot.nodes.as_slice().iter().map(|n| self.nodes[*n as usize].name.clone()).collect(),
            gpus_per_node: andreas_core::GpuCount(u32::try_from(config.gpus).unwrap_or(u32::MAX)),
            limit: config.limit.map(Watts),
        }
    }
}

fn compile_types(snapshot: &Snapshot) -> Vec<TypeData> {
    let mut types: Vec<_> = snapshot
        .gpu_types
        .iter()
        .map(|t| TypeData {
            name: t.name.clone(),
            idle_mw: milliwatts(t.idle.0),
            max: t.max.0,
            nodes: Vec::new(),
            widest: 0,
            overhead: f64::INFINITY,
        })
        .collect();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    // One more for placements on GPUs of which nothing is known: no idle draw to save, the most to spend.
    let max = types.iter().map(|t| t.max).fold(0.0, f64::max);
    let name = GpuType::from("");
    types.push(TypeData { name, idle_mw: 0, max, nodes: Vec::new(), widest: 0, overhead: 0.0 });
    types
}

/// Numbers of the node resources that have no fixed number.
#[derive(Default)]
struct Names {
    others: BTreeMap<Arc<str>, usize>,
    pods_limited: bool,
}

impl Names {
    fn kinds(&self) -> usize {
        PODS + 1 + self.others.len()
    }
}

fn compile_nodes(
    snapshot: &Snapshot,
    kind_of: &BTreeMap<GpuType, usize>,
    names: &mut Names,
) -> (Vec<NodeData>, Vec<i128>) {
    for key in snapshot.nodes.iter().flat_map(|n| n.free.others.keys()) {
        let next = names.kinds();
        names.others.entry(key.clone()).or_insert(next);
    }
    names.pods_limited = snapshot.nodes.iter().any(|n| n.free.pods.is_some());
    let mut order: Vec<_> = snapshot.nodes.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    let kinds = names.kinds();
    let mut resources = vec![UNLIMITED; kinds * order.len()];
    let mut nodes = Vec::with_capacity(order.len());
    for (i, node) in order.into_iter().enumerate() {
        let free = &mut resources[i * kinds..(i + 1) * kinds];
        let limited = [(CPU, node.free.cpu_milli), (MEMORY, node.free.memory_bytes), (PODS, node.free.pods)];
        for (kind, amount) in limited {
            if let Some(amount) = amount {
                free[kind] = i128::from(amount);
            }
        }
        for (key, amount) in &node.free.others {
            free[names.others[key]] = i128::from(*amount);
        }
        nodes.push(NodeData {
            name: node.name.clone(),
            kind: kind_of[&node.gpu_type],
            rank: 0,
            free_gpus: i64::from(node.free_gpus.0),
            overhead: node.overhead.0,
            overhead_mw: milliwatts(node.overhead.0),
        });
    }
    (nodes, resources)
}

/// Sets of nodes, each kept once.
struct Sets<'a> {
    by_name: &'a BTreeMap<NodeName, u32>,
    known: BTreeMap<Vec<u64>, usize>,
    sets: &'a mut Vec<Vec<u64>>,
}

impl Sets<'_> {
    fn of(&mut self, job: &Job, nodes: usize) -> usize {
        if job.candidates.is_none() && job.forbidden.is_empty() {
            return 0;
        }
        let words = nodes.div_ceil(64);
        let mut bits = vec![if job.candidates.is_some() { 0 } else { u64::MAX }; words];
        for name in job.candidates.iter().flat_map(|c| c.iter()) {
            if let Some(node) = self.by_name.get(name) {
                bits[*node as usize / 64] |= 1 << (node % 64);
            }
        }
        for node in job.forbidden.iter().filter_map(|name| self.by_name.get(name)) {
            bits[*node as usize / 64] &= !(1 << (node % 64));
        }
        let next = self.sets.len();
        *self.known.entry(bits).or_insert_with_key(|bits| {
            self.sets.push(bits.clone());
            next
        })
    }
}

/// What compiling a job looks up.
struct JobContext<'a, 'b> {
    snapshot: &'a Snapshot,
    types: &'b [TypeData],
    kind_of: &'b BTreeMap<GpuType, usize>,
    by_name: &'b BTreeMap<NodeName, u32>,
    quota_of: &'b BTreeMap<(String, Arc<str>), usize>,
    prices: &'b PriceOverTime,
    names: &'b Names,
}

impl<'a> JobContext<'a, '_> {
    fn compile(&self, job: &'a Job, admits: usize) -> JobData<'a> {
        let mut configs = self.configs(job);
        let holding = self.holding(job, &mut configs);
        let lateness = &self.snapshot.lateness;
        let (age, overdue) = self.age(job);
        let weight = job.weight.0 * age;
        let share = match job.deadline {
            Some(_) => lateness.turnaround_share,
            None => lateness.turnaround_share.max(0.1),
        };
        let lost = self.snapshot.restart.0 + job.lost.0;
        let offered = configs.iter().filter(|c| c.offered);
        let least_power = offered.map(|c| c.power).reduce(f64::min).unwrap_or(0.0);
        let times = || configs.iter().filter(|c| c.offered).map(|c| c.time);
        let (fastest, slowest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
        // A late job pays for every second lost, any other for its time in the system. The same for every target,
        // so that one change never costs more than two.
        let late = job.deadline.is_some_and(|d| d < self.snapshot.now);
        let change =
            self.prices.energy_cost(least_power, lost) + weight * lost * if late { 1.0 } else { share };
        JobData {
            job,
            configs,
            weight,
            share,
            deadline: job.deadline.map_or(f64::INFINITY, |d| d.0),
            overdue,
            holding,
            admits,
            node_demand: self.node_demand(job),
            quota_demand: self.quota_demand(job),
            change,
            fastest,
            slowest,
        }
    }

    /// Factor of the planning weight, and whether it has reached its end.
    fn age(&self, job: &Job) -> (f64, bool) {
        let Some(aging) = self.snapshot.lateness.aging else { return (1.0, false) };
        let since = job.deadline.unwrap_or(job.submit);
        let age = 1.0 + (self.snapshot.now - since).max(Seconds::ZERO).0 / aging.0;
        (age.min(OLDEST), age >= OLDEST)
    }

    fn configs(&self, job: &Job) -> Vec<Config> {
        let mut configs = Vec::new();
        for row in job.estimates.iter() {
            let Some(&kind) = self.kind_of.get(&row.gpu_type) else { continue };
            let total = row.gpus.0;
            let spans = std::iter::once((1, 1.0)).chain(job.spread.iter().map(|s| (s.nodes, s.time_factor)));
            for (nodes, spread) in spans {
                let gpus = i64::from(total / nodes);
                let possible = total % nodes == 0
                    && gpus <= self.types[kind].widest
                    && self.types[kind].nodes.len() >= nodes as usize;
                if !possible {
                    continue;
                }
                let limits = job.limits.iter().filter(|l| l.gpu_type == row.gpu_type);
                let limits = limits.map(|l| (Some(l.limit.0), l.time_factor, l.power_factor));
                for (limit, slower, thriftier) in std::iter::once((None, 1.0, 1.0)).chain(limits) {
                    let power = row.power.0 * thriftier;
                    configs.push(Config {
                        kind,
                        nodes,
                        gpus,
                        limit,
                        time: job.epochs_left * row.epoch.0 * spread * slower,
                        power,
                        power_mw: milliwatts(power),
                        rel_std: row.rel_std,
                        offered: true,
                    });
                }
            }
        }
        let key = |c: &Config| (c.kind, c.total_gpus(), c.nodes, c.limit.map(f64::to_bits));
        configs.sort_by_key(key);
        configs.dedup_by_key(|c| key(c));
        configs
    }

    fn holding(&self, job: &Job, configs: &mut Vec<Config>) -> Holding {
        match &job.state {
            JobState::Waiting => Holding::Nothing,
            JobState::Starting { target, .. } => {
                Holding::Committed { target: self.spot(job, target, configs), leaving: None }
            }
            JobState::Stopping { holds, target: Some(target), .. } => Holding::Committed {
                target: self.spot(job, target, configs),
                leaving: Some(self.spot(job, holds, configs)),
            },
            JobState::Stopping { holds, target: None, .. } => {
                Holding::Leaving { spot: self.spot(job, holds, configs) }
            }
            JobState::Running { placement, since } => {
                let spot = self.spot(job, placement, configs);
                let known = spot.nodes.as_slice().len() == placement.nodes.len();
                let settled = *since + job.min_run <= self.snapshot.now;
                let free_to_move = known && settled && job.movable && job.preemption == Preemption::Allowed;
                Holding::Running { spot, free_to_move }
            }
        }
    }

    /// A placement by numbers; a configuration that is not offered (any more) is added for it.
    fn spot(&self, job: &Job, place: &Placement, configs: &mut Vec<Config>) -> Spot {
        let nodes: Vec<u32> = place.nodes.iter().filter_map(|n| self.by_name.get(n).copied()).collect();
        let kind = self.kind_of.get(&place.gpu_type).copied().unwrap_or(self.types.len() - 1);
        let span = u32::try_from(place.nodes.len()).unwrap_or(u32::MAX);
        let gpus = i64::from(place.gpus_per_node.0);
        let limit = place.limit.map(|l| l.0);
        let same = |c: &Config| c.kind == kind && c.nodes == span && c.gpus == gpus && c.limit == limit;
        let config = configs.iter().position(same).unwrap_or_else(|| {
            configs.push(self.unlisted(job, place, kind, span, configs));
            configs.len() - 1
        });
        let nodes = match nodes.as_slice() {
            [node] => Nodes::One(*node),
            _ => Nodes::Many(nodes.into_boxed_slice()),
        };
        Spot { config, nodes }
    }

    /// Time and power of a configuration that the job's table does not have: those of the nearest row of the type,
    /// else the slowest of all; watts never below what the type draws at rest.
    fn unlisted(&self, job: &Job, place: &Placement, kind: usize, span: u32, configs: &[Config]) -> Config {
        let total = place.total_gpus();
        let nearest = job
            .estimates
            .iter()
            .filter(|row| row.gpu_type == place.gpu_type)
            .min_by_key(|row| (row.gpus.0.abs_diff(total.0), row.gpus));
        let slowest = configs.iter().map(|c| c.time).fold(0.0, f64::max);
        let draw = self.types[kind].max * f64::from(total.0);
        let (time, power) = match nearest {
            Some(row) => {
                (job.epochs_left * row.epoch.0, row.power.0 / f64::from(row.gpus.0) * f64::from(total.0))
            }
            None if slowest > 0.0 => (slowest, draw),
            None => (UNKNOWN_RUN_S, draw),
        };
        Config {
            kind,
            nodes: span,
            gpus: i64::from(place.gpus_per_node.0),
            limit: place.limit.map(|l| l.0),
            time,
            power,
            power_mw: milliwatts(power),
            rel_std: nearest.map_or(1.0, |row| row.rel_std),
            offered: false,
        }
    }

    fn node_demand(&self, job: &Job) -> Vec<Demand> {
        let (fixed, per_gpu) = (&job.worker.fixed, &job.worker.per_gpu);
        let amount = |pick: fn(&Resources) -> Option<u64>| {
            let of = |r| i128::from(pick(r).unwrap_or(0));
            (of(fixed), of(per_gpu))
        };
        let (cpu, memory) = (amount(|r| r.cpu_milli), amount(|r| r.memory_bytes));
        let mut demand = vec![(CPU, cpu), (MEMORY, memory), (PODS, (1, 0))];
        for (key, &kind) in &self.names.others {
            let of = |r: &Resources| i128::from(r.others.get(key).copied().unwrap_or(0));
            demand.push((kind, (of(fixed), of(per_gpu))));
        }
        let limits = |kind: usize| kind != PODS || self.names.pods_limited;
        demand
            .into_iter()
            .filter(|(kind, amount)| *amount != (0, 0) && limits(*kind))
            .map(|(what, (fixed, per_gpu))| Demand { what, fixed, per_gpu, per_gang: 0 })
            .collect()
    }

    fn quota_demand(&self, job: &Job) -> Vec<Demand> {
        if self.quota_of.is_empty() {
            return Vec::new();
        }
        let worker = &job.worker;
        let keys: std::collections::BTreeSet<_> =
            [&worker.quota_fixed, &worker.quota_per_gpu, &worker.quota_per_gang]
                .into_iter()
                .flat_map(|m| m.keys())
                .collect();
        let of = |m: &BTreeMap<Arc<str>, u64>, key| i128::from(m.get(key).copied().unwrap_or(0));
        keys.into_iter()
            .filter_map(|key| {
                let what = *self.quota_of.get(&(job.namespace.as_str().to_owned(), key.clone()))?;
                Some(Demand {
                    what,
                    fixed: of(&worker.quota_fixed, key),
                    per_gpu: of(&worker.quota_per_gpu, key),
                    per_gang: of(&worker.quota_per_gang, key),
                })
            })
            .collect()
    }
}

/// Taken for the rest of a run about which nothing at all is known: four hours, as everywhere in the product.
const UNKNOWN_RUN_S: f64 = 4.0 * 3600.0;

impl Instance<'_> {
    /// When budget or tariff change next in a way that a plan must react to.
    pub fn next_edge(&self) -> Option<Time> {
        let now = self.snapshot.now;
        let tariff = self.snapshot.tariff.next_edge(now);
        let budget = self.snapshot.budget.as_ref().and_then(|b| {
            let edge = b.watts.next_edge(now + b.look_ahead)?;
            Some((edge - b.look_ahead).max(now))
        });
        [tariff, budget].into_iter().flatten().min_by(Time::total_cmp)
    }
}
