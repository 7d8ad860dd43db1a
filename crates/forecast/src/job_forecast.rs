//! The futures of one job, and what follows from them.

use andreas_model::normal::cdf;
use andreas_model::{GpuType, Money, Seconds, Time};
use andreas_planner::{Job, Lateness};

/// The rest of a job's life in one future.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Start: of its present run, else its next one.
    pub start: Time,
    /// End.
    pub end: Time,
    /// GPU type at the end.
    pub gpu_type: GpuType,
    /// GPUs at the end.
    pub gpus: u32,
    /// Energy of its GPUs and its share of its hosts' from now on, at the tariff.
    pub energy_cost: Money,
    /// Begin of the last stretch of training, with its mean length and the standard deviation of the logarithm of
    /// the length.
    pub(crate) last: (Time, Seconds, f64),
}

/// 10 %, 50 % and 90 % quantiles; infinite where that share of futures does not get there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// Reached by then with 10 % probability.
    pub p10: Time,
    /// Median.
    pub p50: Time,
    /// Reached by then with 90 % probability.
    pub p90: Time,
}

impl Quantiles {
    fn from_times(mut times: Vec<Time>) -> Self {
        times.sort_by(Time::total_cmp);
        let at = |p: f64| {
            let place = p * times.len() as f64 - 0.5;
            let last = times.len() - 1;
            let below = (libm::floor(place).max(0.0) as usize).min(last);
            let (a, b) = (times[below], times[(below + 1).min(last)]);
            let part = (place - below as f64).clamp(0.0, 1.0);
            if part == 0.0 || a == b { a } else { a + (b - a) * part }
        };
        Self { p10: at(0.1), p50: at(0.5), p90: at(0.9) }
    }
}

/// The futures of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobForecast {
    /// Its rest of life by future; `None` where it never starts.
    pub runs: Vec<Option<Run>>,
    /// Start.
    pub start: Quantiles,
    /// End.
    pub finish: Quantiles,
    /// The end as it was sampled, before [`Forecast::correct`](crate::Forecast::correct).
    pub sampled_finish: Quantiles,
    /// Probability of ending by the deadline; 1 without one.
    pub on_time: f64,
    /// Mean cost of energy from now on, its share of its hosts' included.
    pub energy_cost: Money,
    /// Mean cost of lateness, missed deadline included.
    pub lateness_cost: Money,
    /// Mean cost of its time in the system from now on.
    pub turnaround_cost: Money,
}

/// A job without an end counts as this long in the system.
const NEVER: Seconds = Seconds(30.0 * 86_400.0);

impl JobForecast {
    pub(crate) fn new(job: &Job, rules: &Lateness, now: Time, runs: Vec<Option<Run>>) -> Self {
        let never = Time(f64::INFINITY);
        let times =
            |pick: fn(&Run) -> Time| runs.iter().map(|run| run.as_ref().map_or(never, pick)).collect();
        let count = runs.len().max(1) as f64;
        let share = rules.share(job.deadline.is_some());
        let (mut on_time, mut energy, mut late, mut turnaround) = (0.0, 0.0, 0.0, 0.0);
        for run in &runs {
            let end = run.as_ref().map_or(now + NEVER, |run| run.end);
            let chance = match (job.deadline, run) {
                (None, _) => 1.0,
                (Some(_), None) => 0.0,
                (Some(deadline), Some(run)) => run.chance(deadline),
            };
            on_time += chance;
            energy += run.as_ref().map_or(0.0, |run| run.energy_cost.0);
            turnaround += (end - now).0.max(0.0) * share;
            let tardiness = job.deadline.map_or(0.0, |deadline| (end - deadline).0.max(0.0));
            late += tardiness + (1.0 - chance) * rules.late_fixed.0;
        }
        let finish = Quantiles::from_times(times(|run| run.end));
        Self {
            start: Quantiles::from_times(times(|run| run.start)),
            finish,
            sampled_finish: finish,
            on_time: on_time / count,
            energy_cost: Money(energy / count),
            lateness_cost: Money(job.weight.0 * late / count),
            turnaround_cost: Money(job.weight.0 * turnaround / count),
            runs,
        }
    }

    /// Probability of ending by an instant.
    #[must_use]
    pub fn on_time_by(&self, deadline: Time) -> f64 {
        let chances = self.runs.iter().map(|run| run.as_ref().map_or(0.0, |run| run.chance(deadline)));
        chances.sum::<f64>() / self.runs.len().max(1) as f64
    }

    /// Mean cost of everything.
    #[must_use]
    pub fn cost(&self) -> Money {
        self.energy_cost + self.lateness_cost + self.turnaround_cost
    }

    /// GPU type and GPUs of most futures; `None` if it never starts.
    #[must_use]
    pub fn configuration(&self) -> Option<(&GpuType, u32)> {
        let mut counts: Vec<((&GpuType, u32), usize)> = Vec::new();
        for run in self.runs.iter().flatten() {
            let key = (&run.gpu_type, run.gpus);
            match counts.iter_mut().find(|(known, _)| *known == key) {
                Some((_, count)) => *count += 1,
                None => counts.push((key, 1)),
            }
        }
        counts
            .into_iter()
            .max_by_key(|((name, gpus), count)| (*count, std::cmp::Reverse((*name, *gpus))))
            .map(|c| c.0)
    }
}

impl Run {
    /// Probability of ending by an instant, given when and where its last stretch begins. Less noisy than
    /// counting ends.
    fn chance(&self, deadline: Time) -> f64 {
        let (begin, mean, rel_std) = self.last;
        let available = (deadline - begin).0;
        if rel_std < 1e-9 || mean.0 <= 0.0 {
            return if self.end <= deadline { 1.0 } else { 0.0 };
        }
        if available <= 0.0 {
            return 0.0;
        }
        cdf(libm::log(available / mean.0) / rel_std + rel_std / 2.0)
    }
}
