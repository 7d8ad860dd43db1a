//! Noise of a table without a model: a lower bound on the error of any prediction of single rows.
//!
//! * **Smoothness**: the third divided difference over four neighbouring rows that differ in one
//!   axis (GPUs, batch or limit) removes every parabola. What remains is noise and some sharper
//!   curvature. Scaled to the median error of a predictor that knows the curve exactly.
//! * **Ratios**: distance of a job's ratio of two GPU types from the median ratio of the other
//!   jobs. This is the error of a predictor without rows on the new type.
//! * **Across**: the same for the ratio of a job's time on several nodes to its time on the most
//!   GPUs of one node, batch fixed.

use std::collections::BTreeMap;

use super::median;
use crate::table::Sample;

/// Noise of a table. The second number of each pair is how many values it rests on; NaN without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Median error of a predictor that knows the smooth curve.
    pub smooth: (f64, usize),
    /// Distance of jobs' type ratios from the median of other jobs.
    pub ratios: (f64, usize),
    /// The same for times on several nodes over those on one.
    pub across: (f64, usize),
}

/// GPUs, nodes, batch and limit; floats as bits.
type Place = [u64; 4];

fn place(s: &Sample) -> Place {
    let bits = |x: Option<f64>| x.unwrap_or(0.0).to_bits();
    [u64::from(s.gpus), u64::from(s.nodes), bits(s.batch), bits(s.power_limit_w)]
}

/// Noise of the quantity that `value` reads; rows without it are ignored.
pub fn floor(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Floor {
    let rows: Vec<(&Sample, f64)> =
        samples.iter().filter_map(|s| Some((s, value(s).filter(|v| *v > 0.0)?.ln()))).collect();
    let informed = |values: Vec<f64>| (median(values.clone()), values.len());
    Floor { smooth: informed(smooth(&rows)), ratios: informed(ratios(&rows)), across: informed(across(&rows)) }
}

fn smooth(rows: &[(&Sample, f64)]) -> Vec<f64> {
    let mut lines: BTreeMap<(&str, &str, usize, Place), Vec<(f64, f64)>> = BTreeMap::new();
    for (s, y) in rows {
        for axis in [0, 2, 3] {
            let (mut line, x) = (place(s), [Some(f64::from(s.gpus)), None, s.batch, s.power_limit_w][axis]);
            line[axis] = 0;
            if let Some(x) = x {
                lines.entry((&s.profile, &s.gpu_type, axis, line)).or_default().push((x.ln(), *y));
            }
        }
    }
    let mut found = Vec::new();
    for line in lines.values_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.extend(line.windows(4).filter_map(third_difference));
    }
    found
}

/// Third divided difference of four points, scaled to noise of size one.
fn third_difference(points: &[(f64, f64)]) -> Option<f64> {
    let others = |i: usize| (0..4).filter(move |j| *j != i);
    let weights: Vec<f64> =
        (0..4).map(|i| others(i).map(|j| 1.0 / (points[i].0 - points[j].0)).product()).collect();
    let sum: f64 = weights.iter().zip(points).map(|(w, p)| w * p.1).sum();
    Some(sum.abs() / weights.iter().map(|w| w * w).sum::<f64>().sqrt()).filter(|d| d.is_finite())
}

fn ratios(rows: &[(&Sample, f64)]) -> Vec<f64> {
    let limit = |s: &Sample| s.power_limit_w.unwrap_or(0.0);
    let mut highest: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (s, _) in rows {
        let most = highest.entry((&s.profile, &s.gpu_type)).or_default();
        *most = most.max(limit(s));
    }
    let mut at: BTreeMap<(&str, Place), BTreeMap<&str, f64>> = BTreeMap::new();
    for (s, y) in rows.iter().filter(|(s, _)| limit(s) >= highest[&(s.profile.as_str(), s.gpu_type.as_str())]) {
        let [gpus, nodes, batch, _] = place(s);
        at.entry((&s.profile, [gpus, nodes, batch, 0])).or_default().insert(&s.gpu_type, *y);
    }
    let mut found: BTreeMap<(&str, &str), BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for ((job, _), types) in &at {
        for (a, x) in types {
            for (b, y) in types.range(*a..).skip(1) {
                found.entry((a, b)).or_default().entry(job).or_default().push(x - y);
            }
        }
    }
    found.into_values().flat_map(apart).collect()
}

fn across(rows: &[(&Sample, f64)]) -> Vec<f64> {
    let batch = |s: &Sample| s.batch.unwrap_or(0.0).to_bits();
    // The most GPUs on one node, by job, type and batch.
    let mut most: BTreeMap<(&str, &str, u64), (u32, f64)> = BTreeMap::new();
    for (s, y) in rows.iter().filter(|(s, _)| s.nodes <= 1) {
        let best = most.entry((&s.profile, &s.gpu_type, batch(s))).or_insert((s.gpus, *y));
        if s.gpus > best.0 {
            *best = (s.gpus, *y);
        }
    }
    let mut found: BTreeMap<(&str, [u32; 3]), BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for (s, y) in rows.iter().filter(|(s, _)| s.nodes > 1) {
        if let Some((gpus, within)) = most.get(&(&s.profile, &s.gpu_type, batch(s))) {
            let placement = (s.gpu_type.as_str(), [s.gpus, s.nodes, *gpus]);
            found.entry(placement).or_default().entry(&s.profile).or_default().push(y - within);
        }
    }
    found.into_values().flat_map(apart).collect()
}

/// Distance of each job's median from the median of the other jobs.
fn apart(jobs: BTreeMap<&str, Vec<f64>>) -> Vec<f64> {
    let each: Vec<f64> = jobs.into_values().map(median).collect();
    let others = |i: usize| [&each[..i], &each[i + 1..]].concat();
    let off = |i: usize| (each[i] - median(others(i))).abs();
    (0..each.len()).filter(|_| each.len() > 1).map(off).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(job: &str, gpu_type: &str, (gpus, nodes): (u32, u32), epoch: f64) -> Sample {
        Sample {
            profile: job.to_owned(),
            gpu_type: gpu_type.to_owned(),
            gpus,
            nodes,
            epoch_s: Some(epoch),
            ..Sample::default()
        }
    }

    #[test]
    fn noise_is_what_no_smooth_curve_explains() {
        let of = |noise: f64| {
            let row = |g: u32| {
                let up = if g % 2 == 0 { noise } else { -noise };
                row("a", "T4", (g, 1), 100.0 * f64::from(g).powf(-0.8) * (1.0 + up))
            };
            floor(&(1..30).map(row).collect::<Vec<_>>(), |s| s.epoch_s).smooth.0
        };
        assert!(of(0.0) < 1e-9 && (0.04..0.2).contains(&of(0.1)), "{} {}", of(0.0), of(0.1));
    }

    #[test]
    fn types_and_networks_are_compared_between_jobs() {
        let jobs = [("a", 2.0), ("b", 2.0), ("c", 3.0)];
        let types = jobs.map(|(job, ratio)| [row(job, "T4", (1, 1), ratio), row(job, "V100", (1, 1), 1.0)]);
        let nodes = jobs.map(|(job, slower)| [row(job, "T4", (4, 1), 5.0), row(job, "T4", (8, 2), slower)]);
        let found = [floor(&types.concat(), |s| s.epoch_s).ratios, floor(&nodes.concat(), |s| s.epoch_s).across];
        // Two jobs are off from the median of the others by half the difference, one by all of it.
        for (off, count) in found {
            assert_eq!(count, 3);
            assert!((off - 1.5f64.ln() / 2.0).abs() < 1e-9, "{off}");
        }
    }
}
