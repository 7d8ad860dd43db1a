//! Converts rows of a trace to jobs, with the assumptions about missing data.
//!
//! A row gives the time of a job on some number of GPUs. The job takes the same time here on `reference`, the
//! assumed GPU type of the trace. On other types and numbers of GPUs its time follows its model's table.

use std::collections::{BTreeMap, BTreeSet};

use andreas_model::{CostRate, GpuCount, Seconds, Time, Watts, stable_hash};
use andreas_planner::{Estimate, GpuTypeInfo, Job, LimitEffect, MultiNodeEffect, Node};
use andreas_predictor::Features;
use serde::Deserialize;

use super::models::{ModelTables, ModelVariant};
use super::programs;
use super::traces::TraceJob;

/// Speedup of doubling the GPUs beyond the end of a table.
const BEYOND: f64 = 1.6;
/// Maximum GPUs that a rule allows besides the requested number.
const MAX_GPUS: u32 = 64;

/// Assumptions about jobs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobRules {
    /// GPU type of the trace's durations; default: the first of the cluster.
    pub reference: Option<String>,
    /// Approximate seconds per epoch on the reference with the requested GPUs.
    pub epoch_s: f64,
    /// Weight of a job, multiplied by the trace's factor (default 1).
    pub weight: f64,
    /// Weight from this many GPUs on.
    pub weight_by_gpus: BTreeMap<u32, f64>,
    /// Deadlines for rows without one: submission + duration x a random factor in this range. `None`: no
    /// deadline.
    pub deadline_factor: Option<(f64, f64)>,
    /// Minimum and maximum GPUs, as multiples of the requested number. Powers of two in between are allowed.
    pub gpus: (f64, f64),
    /// Share of jobs that may have other numbers of GPUs than they request, 0 to 1; drawn by the job's name.
    pub moldable: f64,
    /// Maximum time of a configuration, as a multiple of the duration, unless all take longer.
    pub patience: f64,
    /// Factor on the time of an epoch by number of nodes, where no node has enough GPUs.
    pub spread: BTreeMap<u32, f64>,
    /// Whether power limits may be used, if the tables have them.
    pub limits: bool,
    /// Draw of a busy GPU without a table of watts: share of the range from idle to maximum.
    pub busy_share: f64,
    /// Seed of random deadlines.
    pub seed: u64,
}

impl Default for JobRules {
    fn default() -> Self {
        Self {
            reference: None,
            epoch_s: 700.0,
            weight: 10.0,
            weight_by_gpus: BTreeMap::new(),
            deadline_factor: None,
            gpus: (0.25, 4.0),
            moldable: 1.0,
            patience: 8.0,
            spread: [(2, 1.1), (4, 1.25), (8, 1.5)].into(),
            limits: false,
            busy_share: 0.8,
            seed: 0,
        }
    }
}

/// Input of the rules.
pub(super) struct RulesInput<'a> {
    pub types: &'a [GpuTypeInfo],
    pub nodes: &'a [Node],
    pub models: &'a ModelTables,
    /// Cost of a second late, for weight 1.
    pub lateness: CostRate,
    /// Submission of the first job: time zero of the replay.
    pub origin_s: f64,
    pub pace: f64,
    /// Whether runs of one program are known to be ones.
    pub programs: bool,
}

/// A job, and what is known of it besides.
pub(super) struct TracedJob {
    pub job: Job,
    pub features: Features,
    /// The profile of its program; `None` where programs are not looked at.
    pub profile: Option<String>,
}

impl JobRules {
    /// A job; `None` if it cannot run on this cluster with the requested GPUs.
    pub(super) fn job(&self, row: &TraceJob, input: &RulesInput<'_>) -> Option<TracedJob> {
        let variant = input.models.find(row.model.as_deref(), row.batch, &row.id)?;
        let reference = self.reference.as_deref().or(input.types.first().map(|t| t.name.as_str()))?;
        let on_reference = variant.seconds.get(reference)?;
        let unit = row.duration_s / interpolated_time(on_reference, row.gpus)?;
        let epochs = match input.programs {
            // An epoch is the same work in every run of a program: `epoch_s` on one GPU of the reference.
            true => unit * interpolated_time(on_reference, 1)? / self.epoch_s,
            false => (row.duration_s / self.epoch_s).round().max(1.0),
        };
        let moldable = self.moldable >= 1.0 || self.uniform(&format!("moldable/{}", row.id)) < self.moldable;
        let allowed = if moldable { self.allowed(row.gpus) } else { BTreeSet::from([row.gpus]) };
        let wanted: Option<BTreeSet<&str>> =
            row.types.as_ref().map(|t| t.split('|').map(str::trim).collect());
        let mut rows = Vec::new();
        let mut spans = BTreeSet::new();
        for kind in input.types.iter().filter(|t| wanted.as_ref().is_none_or(|w| w.contains(t.name.as_str())))
        {
            let Some(times) = variant.seconds.get(kind.name.as_str()) else { continue };
            let of_type = || input.nodes.iter().filter(|n| n.gpu_type == kind.name);
            let max_gpus_per_node = of_type().map(|n| n.gpus.0).max().unwrap_or(0);
            for &gpus in &allowed {
                let span = self.node_count(gpus, max_gpus_per_node);
                let Some(span) =
                    span.filter(|s| of_type().filter(|n| n.gpus.0 >= gpus / s).count() >= *s as usize)
                else {
                    continue;
                };
                let Some(time) = interpolated_time(times, gpus) else { continue };
                spans.insert(span);
                rows.push(Estimate::new(
                    kind.name.clone(),
                    GpuCount(gpus),
                    Seconds(unit * time / epochs),
                    self.watts(variant, kind, gpus),
                ));
            }
        }
        let short = |r: &Estimate| r.epoch.0 * epochs <= self.patience * row.duration_s;
        if rows.iter().any(short) {
            rows.retain(short);
        }
        // The request itself must be possible, so that fixed-request methods replay the same jobs.
        if !rows.iter().any(|r| r.gpus.0 == row.gpus) {
            return None;
        }
        let submit = (row.submit_s - input.origin_s) / input.pace;
        let slack = match (row.deadline_s, self.deadline_factor) {
            (Some(deadline), _) => Some(deadline - row.submit_s),
            (None, Some((low, high))) => Some(row.duration_s * (low + (high - low) * self.uniform(&row.id))),
            (None, None) => None,
        };
        let weight = self.weight_by_gpus.range(..=row.gpus).next_back().map_or(self.weight, |(_, w)| *w);
        // Who names no profile tells no features either.
        let features = match input.programs {
            true => Features::default(),
            false => Features {
                model_family: Some(variant.model.clone()).filter(|model| !model.is_empty()),
                batch: variant.batch.map(f64::from),
                ..Features::default()
            },
        };
        let job = Job {
            deadline: slack.map(|s| Time(submit + s)),
            limits: if self.limits { limits(variant, &rows) } else { Vec::new() },
            spread: spans
                .into_iter()
                .filter_map(|s| Some(MultiNodeEffect { nodes: s, time_factor: *self.spread.get(&s)? }))
                .collect(),
            requested_gpus: Some(GpuCount(row.gpus)),
            ..Job::new(
                row.id.as_str().into(),
                row.namespace.as_deref().unwrap_or("trace").into(),
                Time(submit),
                input.lateness * (weight * row.weight.unwrap_or(1.0)),
                epochs,
                rows.into(),
            )
        };
        let profile = input.programs.then(|| programs::profile(row, variant));
        Some(TracedJob { job, features, profile })
    }

    /// Allowed numbers of GPUs for a request.
    fn allowed(&self, asked: u32) -> BTreeSet<u32> {
        let (low, high) = (self.gpus.0 * f64::from(asked), self.gpus.1 * f64::from(asked));
        let powers = (0..).map(|k| 1_u32 << k).take_while(|g| *g <= MAX_GPUS);
        let mut allowed: BTreeSet<u32> =
            powers.filter(|g| f64::from(*g) >= low && f64::from(*g) <= high).collect();
        allowed.insert(asked);
        allowed
    }

    /// Number of nodes for these GPUs: one if possible, else the fewest equal parts that the rules allow.
    fn node_count(&self, gpus: u32, max_gpus_per_node: u32) -> Option<u32> {
        if gpus <= max_gpus_per_node {
            return Some(1);
        }
        self.spread
            .keys()
            .copied()
            .find(|n| *n > 1 && gpus.is_multiple_of(*n) && gpus / n <= max_gpus_per_node)
    }

    fn watts(&self, variant: &ModelVariant, kind: &GpuTypeInfo, gpus: u32) -> Watts {
        let table = variant.watts.get(kind.name.as_str());
        let nearest = table.and_then(|t| t.iter().min_by_key(|(g, _)| g.abs_diff(gpus)));
        let one = match nearest {
            Some((g, watts)) => watts / f64::from(*g),
            None => kind.idle.0 + self.busy_share * (kind.max.0 - kind.idle.0),
        };
        Watts(one.clamp(kind.idle.0, kind.max.0) * f64::from(gpus))
    }

    /// Uniform number in [0, 1), a function of the job's name and the seed.
    fn uniform(&self, id: &str) -> f64 {
        // Hash twice, to spread names that differ only in the last letter.
        let mixed = stable_hash(&format!("{}/{id}/{}", self.seed, stable_hash(id)));
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Time with this many GPUs, from the table by log-log interpolation. Below the first entry the GPU seconds
/// are constant; beyond the last each doubling has a fixed gain.
fn interpolated_time(table: &BTreeMap<u32, f64>, gpus: u32) -> Option<f64> {
    let below = table.range(..=gpus).next_back();
    let above = table.range(gpus..).next();
    let log = |a: u32, b: u32| libm::log2(f64::from(a) / f64::from(b));
    match (below, above) {
        (Some((a, time)), Some((b, _))) if a == b => Some(*time),
        (Some((a, x)), Some((b, y))) => Some(x * libm::exp2(log(gpus, *a) / log(*b, *a) * libm::log2(y / x))),
        (Some((a, time)), None) => Some(time / libm::pow(BEYOND, log(gpus, *a))),
        (None, Some((b, time))) => Some(time * f64::from(*b) / f64::from(gpus)),
        (None, None) => None,
    }
}

fn limits(variant: &ModelVariant, rows: &[Estimate]) -> Vec<LimitEffect> {
    let kinds: BTreeSet<_> = rows.iter().map(|r| r.gpu_type.clone()).collect();
    let mut limits = Vec::new();
    for kind in kinds {
        for (limit, time_factor, power_factor) in variant.limits.get(kind.as_str()).into_iter().flatten() {
            limits.push(LimitEffect {
                gpu_type: kind.clone(),
                limit: Watts(*limit),
                time_factor: *time_factor,
                power_factor: *power_factor,
            });
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_and_beyond_the_entries_of_a_table() {
        let table = BTreeMap::from([(2, 100.0), (8, 25.0)]);
        assert_eq!(interpolated_time(&table, 2), Some(100.0));
        assert!((interpolated_time(&table, 4).unwrap() - 50.0).abs() < 1e-9);
        assert!((interpolated_time(&table, 16).unwrap() - 25.0 / 1.6).abs() < 1e-9);
        assert_eq!(interpolated_time(&table, 1), Some(200.0));
    }

    #[test]
    fn a_job_may_have_powers_of_two_around_what_it_asked_for() {
        let rules = JobRules::default();
        assert_eq!(Vec::from_iter(rules.allowed(3)), [1, 2, 3, 4, 8]);
        assert_eq!(rules.node_count(16, 8), Some(2));
        assert_eq!(rules.node_count(12, 8), Some(2));
        assert_eq!(rules.node_count(7, 4), None);
    }
}
