//! Used and free capacity. Every method reserves capacity here only, so no plan can break a hard constraint:
//! GPUs, CPU, memory, pods and other resources per node, namespace quotas, and the power budget.
//!
//! Counters may be negative where jobs hold more than a node still has; then nothing more fits.

use crate::draw::Draw;
use crate::instance::{Assignment, Config, Demand, Instance, JobData, Nodes, UNLIMITED};

/// The constraint that keeps a job from fitting now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Not enough GPUs or other resources on enough nodes.
    Nodes,
    /// The quota of the namespace.
    Quota,
    /// The power budget.
    Power,
}

/// One of the things of which jobs must not take more than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// GPUs of a node.
    Gpus(u32),
    /// A resource of a node, `node * kinds + kind`.
    Resource(usize),
    /// A quota.
    Quota(usize),
    /// The power budget, in milliwatts.
    Power,
}

impl Part {
    /// The constraint it belongs to.
    pub fn obstacle(self) -> Obstacle {
        match self {
            Self::Gpus(_) | Self::Resource(_) => Obstacle::Nodes,
            Self::Quota(_) => Obstacle::Quota,
            Self::Power => Obstacle::Power,
        }
    }
}

/// What a job takes somewhere, besides power.
pub(crate) fn parts(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> Vec<(Part, i128)> {
    let data = &instance.jobs[job];
    let config = &data.configs[assignment.config];
    let mut parts = Vec::new();
    for &node in assignment.nodes.as_slice() {
        parts.push((Part::Gpus(node), i128::from(config.gpus)));
        let at = node as usize * instance.kinds;
        let of = |demand: &Demand| (Part::Resource(at + demand.what), demand.of_worker(config.gpus));
        parts.extend(data.node_demand.iter().map(of));
    }
    parts.extend(data.quota_demand.iter().map(|d| (Part::Quota(d.what), d.of_job(config))));
    parts
}

/// Free GPUs, resources and quotas, and the budgeted power, of a plan under construction.
#[derive(Clone)]
pub struct Capacity {
    free: Vec<i64>,
    resources: Vec<i128>,
    quotas: Vec<i128>,
    draw: Draw,
    /// By [lower window](Instance::lower_windows): of the jobs that could not be gone by then.
    later: Vec<Draw>,
    /// Nodes by type and free GPUs, as bit sets over their rank: `bucket[type][free]`.
    buckets: Vec<Buckets>,
    /// Search work so far; a deterministic clock.
    pub work: u64,
}

#[derive(Clone)]
struct Buckets {
    words: usize,
    bits: Vec<u64>,
    /// Number of nodes with at least one free GPU.
    open: usize,
}

impl Buckets {
    fn set(&mut self, free: i64, rank: usize, on: bool) {
        if free <= 0 {
            return;
        }
        let Ok(level) = usize::try_from(free) else { return };
        let word = &mut self.bits[level * self.words + rank / 64];
        if on {
            *word |= 1 << (rank % 64);
            self.open += 1;
        } else {
            *word &= !(1 << (rank % 64));
            self.open -= 1;
        }
    }
}

/// Power double-counted for a job that restarts on the same nodes: min(old, new) minus the idle draw of the
/// GPUs.
pub(crate) fn shared_power(
    instance: &Instance<'_>,
    job: usize,
    (leaving, target): (&Assignment, &Assignment),
) -> i128 {
    if leaving.nodes != target.nodes {
        return 0;
    }
    let data = &instance.jobs[job];
    let (old, new) = (&data.configs[leaving.config], &data.configs[target.config]);
    let both = i128::from(old.gpus.min(new.gpus));
    let kinds = leaving.nodes.as_slice().iter().map(|node| instance.nodes[*node as usize].kind);
    let idle: i128 = kinds.map(|kind| instance.types[kind].idle_mw * both).sum();
    old.draw_mw().min(new.draw_mw()) - idle
}

impl Capacity {
    /// Capacity with none of our jobs.
    pub(crate) fn empty(instance: &Instance<'_>) -> Self {
        let buckets = instance.types.iter().map(|kind| {
            let words = kind.nodes.len().div_ceil(64);
            let levels = usize::try_from(kind.max_node_gpus).unwrap_or(0) + 1;
            Buckets { words, bits: vec![0; words * levels], open: 0 }
        });
        let draw = Draw { power: instance.floor_mw, workers: vec![0; instance.nodes.len()] };
        let mut ledger = Self {
            free: instance.nodes.iter().map(|n| n.free_gpus).collect(),
            resources: instance.resources.clone(),
            quotas: instance.quotas.clone(),
            later: vec![draw.clone(); instance.lower_windows.len()],
            draw,
            buckets: buckets.collect(),
            work: 0,
        };
        for node in &instance.nodes {
            ledger.buckets[node.kind].set(node.free_gpus, node.rank, true);
        }
        ledger
    }

    /// Copies the counters of another `Capacity`, keeping the allocations.
    pub fn reset_to(&mut self, other: &Self) {
        self.free.clone_from(&other.free);
        self.resources.clone_from(&other.resources);
        self.quotas.clone_from(&other.quotas);
        for (mine, theirs) in
            std::iter::once((&mut self.draw, &other.draw)).chain(self.later.iter_mut().zip(&other.later))
        {
            mine.power = theirs.power;
            mine.workers.clone_from(&theirs.workers);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            mine.bits.clone_from(&theirs.bits);
            mine.open = theirs.open;
        }
    }

    /// Budgeted power of nodes and GPUs, in milliwatts.
    pub fn power(&self) -> i128 {
        self.draw.power
    }

    /// The first budget that is exceeded: 0 is the present one, 1 the first lower window. `None`: all are kept.
    pub(crate) fn first_exceeded(&self, instance: &Instance<'_>) -> Option<usize> {
        if instance.allowed_mw.is_some_and(|allowed| self.draw.power > allowed) {
            return Some(0);
        }
        let mut windows = self.later.iter().zip(&instance.lower_windows);
        windows.position(|(draw, window)| draw.power > window.most_mw).map(|window| window + 1)
    }

    /// Whether the power is within the budget.
    pub(crate) fn within_budget(&self, instance: &Instance<'_>) -> bool {
        self.first_exceeded(instance).is_none()
    }

    /// Whether any node has a free GPU.
    pub fn has_free_gpu(&self) -> bool {
        self.buckets.iter().any(|b| b.open > 0)
    }

    /// Free GPUs of a node; negative where jobs hold more than it has.
    pub fn free_gpus(&self, node: u32) -> i64 {
        self.free[node as usize]
    }

    /// Free amount of a resource on a node.
    pub(crate) fn left(&self, instance: &Instance<'_>, node: u32, what: usize) -> i128 {
        self.resources[node as usize * instance.kinds + what]
    }

    /// What is left of a part of the capacity, by the whole budget; negative where jobs hold more than there is.
    pub(crate) fn free(&self, instance: &Instance<'_>, part: Part) -> i128 {
        match part {
            Part::Gpus(node) => i128::from(self.free[node as usize]),
            Part::Resource(at) => self.resources[at],
            Part::Quota(what) => self.quotas[what],
            Part::Power => instance.budget_mw.map_or(UNLIMITED, |budget| budget - self.draw.power),
        }
    }

    /// Number of our workers on the node.
    pub(crate) fn workers_on(&self, node: u32) -> usize {
        self.draw.workers[node as usize] as usize
    }

    /// Whether our jobs have workers on the node.
    pub(crate) fn busy(&self, node: u32) -> bool {
        self.workers_on(node) > 0
    }

    fn change_free(&mut self, instance: &Instance<'_>, node: u32, by: i64) {
        let data = &instance.nodes[node as usize];
        let buckets = &mut self.buckets[data.kind];
        let free = &mut self.free[node as usize];
        buckets.set(*free, data.rank, false);
        *free += by;
        buckets.set(*free, data.rank, true);
    }

    fn change_room(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment, sign: i64) {
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        let wide = i128::from(sign);
        for &node in assignment.nodes.as_slice() {
            self.change_free(instance, node, -sign * config.gpus);
            let at = node as usize * instance.kinds;
            for demand in &data.node_demand {
                self.resources[at + demand.what] -= wide * demand.of_worker(config.gpus);
            }
        }
        for demand in &data.quota_demand {
            self.quotas[demand.what] -= wide * demand.of_job(config);
        }
    }

    fn change_power(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment, sign: i64) {
        let data = &instance.jobs[job];
        let (config, nodes) = (&data.configs[assignment.config], assignment.nodes.as_slice());
        self.draw.change(instance, config, nodes, sign);
        for draw in &mut self.later[..data.lower_windows] {
            draw.change(instance, config, nodes, sign);
        }
    }

    fn change(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment, sign: i64) {
        self.change_room(instance, job, assignment, sign);
        self.change_power(instance, job, assignment, sign);
    }

    /// Takes the capacity of a leaving job. Its watts count too, unless the budget was lowered below the held
    /// draw; see [`crate::budget::prepared`].
    pub(crate) fn take_leaving(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment) {
        self.change_room(instance, job, assignment, 1);
        if !instance.above_budget {
            self.change_power(instance, job, assignment, 1);
        }
    }

    /// Takes capacity without checking that it is free.
    pub fn take(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment) {
        self.change(instance, job, assignment, 1);
    }

    /// Releases capacity.
    pub fn release(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment) {
        self.change(instance, job, assignment, -1);
    }

    /// Corrects the double count of a job that restarts on the same nodes. It needs the larger of its old and
    /// new share. With both taken, this returns the smaller (`sign` 1) or takes it again (`sign` -1).
    ///
    /// On other nodes both count in full: the target is reserved and its watts must be free at once.
    pub(crate) fn credit_overlap(
        &mut self,
        instance: &Instance<'_>,
        job: usize,
        assignments: (&Assignment, &Assignment),
        sign: i64,
    ) {
        let data = &instance.jobs[job];
        let (leaving, target) = assignments;
        if leaving.nodes != target.nodes {
            return;
        }
        let (old, new) = (&data.configs[leaving.config], &data.configs[target.config]);
        let (both, wide) = (old.gpus.min(new.gpus), i128::from(sign));
        for &node in leaving.nodes.as_slice() {
            self.change_free(instance, node, sign * both);
            let at = node as usize * instance.kinds;
            for demand in &data.node_demand {
                self.resources[at + demand.what] += wide * demand.of_worker(both);
            }
        }
        for demand in &data.quota_demand {
            self.quotas[demand.what] += wide * demand.of_job(old).min(demand.of_job(new));
        }
        if !instance.above_budget {
            let shared = wide * shared_power(instance, job, assignments);
            self.draw.power -= shared;
            self.later[..data.lower_windows].iter_mut().for_each(|draw| draw.power -= shared);
        }
    }

    /// What is left of a quota.
    pub(crate) fn quota_left(&self, what: usize) -> i128 {
        self.quotas[what]
    }

    fn quota_fits(&self, data: &JobData<'_>, config: &Config) -> bool {
        data.quota_demand.iter().all(|d| d.of_job(config) <= self.quotas[d.what])
    }

    fn worker_fits(&self, instance: &Instance<'_>, data: &JobData<'_>, config: &Config, node: u32) -> bool {
        let at = node as usize * instance.kinds;
        self.free[node as usize] >= config.gpus
            && instance.admits(data.admits, node)
            && data.node_demand.iter().all(|d| d.of_worker(config.gpus) <= self.resources[at + d.what])
    }

    /// Adds draw beside the held placements, of limits that are not in force yet.
    pub(crate) fn draw_more(&mut self, milliwatts: i128) {
        self.draw.power += milliwatts;
    }

    /// Whether a start there stays within the budget; other resources are not checked.
    pub(crate) fn within_power(&self, instance: &Instance<'_>, job: usize, assignment: &Assignment) -> bool {
        let data = &instance.jobs[job];
        self.power_fits(instance, data, &data.configs[assignment.config], assignment.nodes.as_slice())
    }

    /// Budgeted power in milliwatts after one worker of `config` starts on each of `nodes`.
    pub(crate) fn power_after_start_mw(
        &self,
        instance: &Instance<'_>,
        config: &Config,
        nodes: &[u32],
    ) -> i128 {
        self.draw.after_start_mw(instance, config, nodes)
    }

    fn power_fits(
        &self,
        instance: &Instance<'_>,
        data: &JobData<'_>,
        config: &Config,
        nodes: &[u32],
    ) -> bool {
        let fits = |draw: &Draw, most: i128| draw.after_start_mw(instance, config, nodes) <= most;
        let mut later = self.later[..data.lower_windows].iter().zip(&instance.lower_windows);
        instance.allowed_mw.is_none_or(|allowed| fits(&self.draw, allowed))
            && later.all(|(draw, window)| fits(draw, window.most_mw))
    }

    /// Checks whether a job fits there now.
    ///
    /// # Errors
    /// The first [`Obstacle`].
    pub fn fits(&self, instance: &Instance<'_>, job: usize, assignment: &Assignment) -> Result<(), Obstacle> {
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        let nodes = assignment.nodes.as_slice();
        if nodes.len() != config.nodes as usize
            || !nodes.iter().all(|n| self.worker_fits(instance, data, config, *n))
        {
            return Err(Obstacle::Nodes);
        }
        if !self.quota_fits(data, config) {
            return Err(Obstacle::Quota);
        }
        if !self.power_fits(instance, data, config, nodes) {
            return Err(Obstacle::Power);
        }
        Ok(())
    }

    /// Whether a held placement does not fit because of what was taken between two states. What it lacked before, as
    /// on a node that has fewer GPUs now, is nobody's doing.
    pub(crate) fn is_displaced(
        &self,
        instance: &Instance<'_>,
        job: usize,
        assignment: &Assignment,
        (before, after): (&Self, &Self),
    ) -> bool {
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        let nodes = assignment.nodes.as_slice();
        let node_is_full = |&node: &u32| {
            let (at, node) = (node as usize * instance.kinds, node as usize);
            let lacks = |d: &Demand| {
                let what = at + d.what;
                after.resources[what] < before.resources[what]
                    && self.resources[what] < d.of_worker(config.gpus)
            };
            after.free[node] < before.free[node] && self.free[node] < config.gpus
                || data.node_demand.iter().any(lacks)
        };
        let quota_is_full = |d: &Demand| {
            after.quotas[d.what] < before.quotas[d.what] && self.quotas[d.what] < d.of_job(config)
        };
        nodes.iter().any(node_is_full)
            || data.quota_demand.iter().any(quota_is_full)
            || after.power() > before.power() && !self.power_fits(instance, data, config, nodes)
    }

    /// Best fit: the nodes with the fewest free GPUs that fit the job, ties by name.
    ///
    /// # Errors
    /// [`Obstacle::Power`] if nodes fit but exceed the budget, [`Obstacle::Quota`] if the namespace
    /// quota is full, else [`Obstacle::Nodes`].
    pub fn find(&mut self, instance: &Instance<'_>, job: usize, config: usize) -> Result<Nodes, Obstacle> {
        let data = &instance.jobs[job];
        let wanted = &data.configs[config];
        self.work += 1;
        let buckets = &self.buckets[wanted.kind];
        if buckets.open < wanted.nodes as usize {
            return Err(Obstacle::Nodes);
        }
        if !self.quota_fits(data, wanted) {
            return Err(Obstacle::Quota);
        }
        let kind = &instance.types[wanted.kind];
        let mut obstacle = Obstacle::Nodes;
        let mut gangs: Vec<(u32, Vec<u32>)> = Vec::new();
        let (Ok(low), Ok(high)) = (usize::try_from(wanted.gpus), usize::try_from(kind.max_node_gpus)) else {
            return Err(Obstacle::Nodes);
        };
        for level in low..=high {
            for word in 0..buckets.words {
                let mut bits = buckets.bits[level * buckets.words + word];
                while bits != 0 {
                    let node = kind.nodes[word * 64 + bits.trailing_zeros() as usize];
                    bits &= bits - 1;
                    self.work += 1;
                    if !self.worker_fits(instance, data, wanted, node) {
                        continue;
                    }
                    if wanted.nodes > 1 {
                        let class = instance.nodes[node as usize].gang_class;
                        let at = gangs.iter().position(|(known, _)| *known == class).unwrap_or_else(|| {
                            gangs.push((class, Vec::new()));
                            gangs.len() - 1
                        });
                        gangs[at].1.push(node);
                        if gangs[at].1.len() == wanted.nodes as usize {
                            let gang = gangs.swap_remove(at).1;
                            return self.gang_within_power(instance, job, wanted, gang);
                        }
                    } else if self.power_fits(instance, data, wanted, &[node]) {
                        return Ok(Nodes::One(node));
                    } else {
                        obstacle = Obstacle::Power;
                    }
                }
            }
        }
        Err(obstacle)
    }

    /// Nodes of one class for a gang within the budget, busy nodes first if needed: they add no overhead.
    fn gang_within_power(
        &self,
        instance: &Instance<'_>,
        job: usize,
        config: &Config,
        gang: Vec<u32>,
    ) -> Result<Nodes, Obstacle> {
        let data = &instance.jobs[job];
        if self.power_fits(instance, data, config, &gang) {
            return Ok(Nodes::Many(gang.into_boxed_slice()));
        }
        let mut all: Vec<u32> = instance.types[config.kind].nodes.clone();
        all.retain(|n| self.worker_fits(instance, data, config, *n));
        all.sort_by_key(|&n| {
            let overhead = if self.busy(n) { 0 } else { instance.nodes[n as usize].overhead_mw };
            (instance.nodes[n as usize].gang_class, overhead, self.free[n as usize], n)
        });
        for class in all.chunk_by(|a, b| same_gang_class(instance, *a, *b)) {
            let Some(gang) = class.get(..config.nodes as usize) else { continue };
            if self.power_fits(instance, data, config, gang) {
                return Ok(Nodes::Many(gang.into()));
            }
        }
        Err(Obstacle::Power)
    }
}

/// Whether a gang may have both nodes.
pub(crate) fn same_gang_class(instance: &Instance<'_>, a: u32, b: u32) -> bool {
    instance.nodes[a as usize].gang_class == instance.nodes[b as usize].gang_class
}
