//! A lower bound on what jobs can cost, for somebody who knows all of them from the beginning.
//!
//! Lagrangian dual over slices of time: a price per GPU of each class and per watt of the budget in every slice, at which
//! each job is scheduled alone. It may change its configuration at any instant, for nothing, so no course that respects
//! restarts costs less, nor one that respects how GPUs fit nodes. Any prices give a valid bound; a subgradient search
//! (steps of Polyak 1969) looks for good ones.
//!
//! **Counted**: energy of the jobs at the tariff, and by their weights tardiness, misses and time in the system, without
//! ageing. **Not counted**: idle draw, restarts, and jobs that are not given. A course must be counted in the same way to be
//! compared.
//!
//! **Time**: for each round and job, the slices from its submission to where waiting costs more than it saves, times its
//! options.

use andreas_model::{CostRate, EnergyPrice, GpuCount, Money, Seconds, Time, Watts};

use andreas_planner::Lateness;

/// The search aims so many times as high as it is.
const AIM: f64 = 1.1;
/// Rounds without a better bound after which steps are halved.
const PATIENCE: u32 = 10;
/// In place of a capacity of 0.
const TINY: f64 = 1e-9;

/// Jobs that are known from the beginning, and what they may use.
#[derive(Clone, Debug)]
pub struct KnownJobs {
    /// Edges of the slices, increasing; the first is not after any submission. After the last one GPUs and watts are free.
    pub edges: Vec<Time>,
    /// The lowest price of energy in each slice, one less than there are edges.
    pub prices: Vec<EnergyPrice>,
    /// GPUs of each class of nodes, > 0.
    pub gpus: Vec<GpuCount>,
    /// Watts of the budget, without what idle nodes draw; infinite: no budget.
    pub watts: Watts,
    /// Cost of lateness and of time in the system; ageing does not count.
    pub lateness: Lateness,
    /// The jobs. One without options counts nothing.
    pub jobs: Vec<KnownJob>,
}

/// A job that is known from the beginning.
#[derive(Clone, Debug)]
pub struct KnownJob {
    /// Its submission.
    pub submit: Time,
    /// Its deadline; `None`: no deadline.
    pub deadline: Option<Time>,
    /// Cost of a second of lateness, >= 0.
    pub weight: CostRate,
    /// How it may run.
    pub options: Vec<RunOption>,
}

/// A configuration of a job on a class of nodes.
#[derive(Clone, Copy, Debug)]
pub struct RunOption {
    /// Index of the class.
    pub class: usize,
    /// GPUs, >= 1.
    pub gpus: GpuCount,
    /// Time of the whole job, > 0.
    pub time: Seconds,
    /// Draw that it is billed for, >= 0.
    pub power: Watts,
    /// Draw that it takes from the budget, >= 0.
    pub budgeted: Watts,
}

impl KnownJobs {
    /// The bound after so many rounds of the search. One without the budget holds with it as well.
    #[must_use]
    pub fn bound(&self, rounds: usize) -> Money {
        let free = Search::new(self, f64::INFINITY).bound(rounds);
        let limited =
            if self.watts.is_finite() { Search::new(self, self.watts.0).bound(rounds) } else { 0.0 };
        Money(free.max(limited))
    }
}

/// Values by class, then slice; the last row is that of watts.
type Rows = Vec<Vec<f64>>;

/// Going over from one option to the next for a whole slice.
#[derive(Clone, Copy)]
struct Segment {
    /// Money per part of the job.
    slope: f64,
    /// Part of the job that it adds.
    progress: f64,
    slice: usize,
    seconds: f64,
    from: Option<usize>,
    to: usize,
}

struct Search<'a> {
    known: &'a KnownJobs,
    /// Seconds of each slice.
    lengths: Vec<f64>,
    /// By row.
    capacity: Vec<f64>,
    /// The lowest price of energy.
    lowest: f64,
}

impl<'a> Search<'a> {
    fn new(known: &'a KnownJobs, watts: f64) -> Self {
        let lowest = known.prices.iter().map(|price| price.0).fold(f64::INFINITY, f64::min);
        Self {
            known,
            lengths: known.edges.windows(2).map(|edges| (edges[1] - edges[0]).0).collect(),
            capacity: known.gpus.iter().map(|gpus| f64::from(gpus.0)).chain([watts]).collect(),
            lowest: if lowest.is_finite() { lowest } else { 0.0 },
        }
    }

    fn bound(&self, rounds: usize) -> f64 {
        let mut prices: Rows = vec![vec![0.0; self.lengths.len()]; self.capacity.len()];
        let mut kept = prices.clone();
        let (mut best, mut scale, mut worse) = (0.0_f64, 1.0, 0);
        for _ in 0..rounds {
            let (value, mut used) = self.value(&prices);
            if value > best {
                (best, worse) = (value, 0);
                kept.clone_from(&prices);
            } else {
                worse += 1;
                if worse >= PATIENCE {
                    (worse, scale) = (0, scale * 0.5);
                    prices.clone_from(&kept);
                    continue;
                }
            }
            // What is used beyond what there is. Scaled by that, so that small classes move as fast as large ones.
            let mut norm = 0.0;
            for ((row, prices), capacity) in used.iter_mut().zip(&prices).zip(&self.capacity) {
                for ((used, price), length) in row.iter_mut().zip(prices).zip(&self.lengths) {
                    let above = *used - capacity * length;
                    *used = if above < 0.0 && *price <= 0.0 { 0.0 } else { above };
                    norm += *used * *used / (capacity * length).max(TINY);
                }
            }
            if norm <= 0.0 {
                break;
            }
            let step = scale * (AIM * best - value) / norm;
            for ((row, prices), capacity) in used.iter().zip(&mut prices).zip(&self.capacity) {
                for ((above, price), length) in row.iter().zip(prices).zip(&self.lengths) {
                    *price = (*price + step * above / (capacity * length).max(TINY)).max(0.0);
                }
            }
        }
        best
    }

    /// The dual's value at these prices, and GPU and watt seconds used by row and slice.
    fn value(&self, prices: &Rows) -> (f64, Rows) {
        let mut used = vec![vec![0.0; self.lengths.len()]; prices.len()];
        let jobs = self.known.jobs.iter().filter(|job| !job.options.is_empty());
        let mut value: f64 = jobs.map(|job| self.alone(job, prices, &mut used)).sum();
        for (row, capacity) in prices.iter().zip(&self.capacity) {
            if capacity.is_finite() {
                let paid = row.iter().zip(&self.lengths).map(|(price, length)| price * length);
                value -= paid.sum::<f64>() * capacity;
            }
        }
        (value, used)
    }

    /// Tardiness, miss and time in the system of an end at that time.
    fn late(&self, job: &KnownJob, end: Time) -> f64 {
        let late = job.deadline.map(|deadline| end - deadline);
        (job.weight * self.known.lateness.charges(late, end - job.submit).sum()).0
    }

    /// The least that a job can cost at these prices, a little less for the ends of slices; books its use.
    fn alone(&self, job: &KnownJob, prices: &Rows, used: &mut Rows) -> f64 {
        let fastest = job.options.iter().map(|option| option.time.0).fold(f64::INFINITY, f64::min);
        let energies = job.options.iter().map(|option| (option.power * option.time).0);
        // No course has less energy, and none ends earlier.
        let least = energies.fold(f64::INFINITY, f64::min) * self.lowest;
        let soonest = Seconds(fastest);
        let edges = &self.known.edges;
        let first = edges.partition_point(|edge| *edge <= job.submit).saturating_sub(1);
        // With everything that the slices offer too dear, it runs after them.
        let horizon = edges.last().copied().unwrap_or(job.submit);
        let mut best = self.late(job, horizon.max(job.submit + soonest)) + least;
        let (mut segments, mut chosen, mut last_part) = (Vec::<Segment>::new(), Vec::<Segment>::new(), 0.0);
        for slice in first..self.lengths.len() {
            let begin = edges[slice].max(job.submit);
            let late = self.late(job, begin.max(job.submit + soonest));
            if late + least >= best {
                break;
            }
            let seconds = (edges[slice + 1] - begin).0;
            for segment in self.hull(job, prices, slice, seconds) {
                let at = segments.partition_point(|s| s.slope <= segment.slope);
                segments.insert(at, segment);
            }
            let Some((energy, count, part)) = fill(&segments) else { continue };
            // Later slices only add cheaper ones.
            segments.truncate(count);
            if energy + late < best {
                best = energy + late;
                chosen.clone_from(&segments);
                last_part = part;
            }
        }
        let last = chosen.len().saturating_sub(1);
        for (at, segment) in chosen.iter().enumerate() {
            let seconds = segment.seconds * if at == last { last_part } else { 1.0 };
            for (option, sign) in [(Some(segment.to), 1.0), (segment.from, -1.0)] {
                let Some(option) = option.map(|option| &job.options[option]) else { continue };
                used[option.class][segment.slice] += sign * f64::from(option.gpus.0) * seconds;
                used[self.known.gpus.len()][segment.slice] += sign * option.budgeted.0 * seconds;
            }
        }
        best
    }

    /// The lower hull of what a job can do in a slice: ever more progress, ever dearer.
    fn hull(&self, job: &KnownJob, prices: &Rows, slice: usize, seconds: f64) -> Vec<Segment> {
        let (energy, watt) = (self.known.prices[slice].0, prices[self.known.gpus.len()][slice]);
        // Money and part of the job in a second.
        let second = |option: &RunOption| {
            let gpus = f64::from(option.gpus.0) * prices[option.class][slice];
            (option.power.0 * energy + gpus + option.budgeted.0 * watt, 1.0 / option.time.0)
        };
        let options: Vec<(f64, f64)> = job.options.iter().map(second).collect();
        let (mut from, mut rate, mut paid) = (None, 0.0, 0.0);
        let mut hull = Vec::new();
        loop {
            let faster = options.iter().enumerate().filter(|(_, option)| option.1 > rate * (1.0 + 1e-12));
            let slopes = faster.map(|(to, option)| ((option.0 - paid) / (option.1 - rate), to));
            let Some((slope, to)) = slopes.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            let progress = (options[to].1 - rate) * seconds;
            hull.push(Segment { slope, progress, slice, seconds, from, to });
            (from, paid, rate) = (Some(to), options[to].0, options[to].1);
        }
        hull
    }
}

/// The cheapest segments until the job is done: what they cost, how many they are, and the part of the last one that it takes;
/// `None` if all of them do not suffice.
fn fill(segments: &[Segment]) -> Option<(f64, usize, f64)> {
    let (mut left, mut cost) = (1.0, 0.0);
    for (at, segment) in segments.iter().enumerate() {
        let part = (left / segment.progress).min(1.0);
        cost += segment.slope * segment.progress * part;
        left -= segment.progress * part;
        if part < 1.0 || left <= 1e-12 {
            return Some((cost, at + 1, part));
        }
    }
    None
}
