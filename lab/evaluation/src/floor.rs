//! Noise of a table without a model: a lower bound on the error of any prediction of single rows.
//!
//! The third divided difference over four neighbouring rows that differ in one axis (GPUs, batch or
//! limit) removes every parabola. What remains is noise and some sharper curvature.

use std::collections::BTreeMap;

use super::median;
use crate::table::Sample;

/// Job, type, axis, and the place without it: GPUs, nodes, batch, limit.
type Line<'a> = (&'a str, &'a str, usize, [u64; 4]);

/// Median error of a predictor that knows each job's smooth curve exactly (NaN without four
/// neighbours), and the number of neighbourhoods. Rows without a `value` are ignored.
pub fn floor(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> (f64, usize) {
    let mut lines: BTreeMap<Line, Vec<(f64, f64)>> = BTreeMap::new();
    for s in samples {
        let axes = [Some(f64::from(s.gpus)), None, s.batch, s.power_limit_w];
        let Some(y) = value(s).filter(|v| *v > 0.0) else { continue };
        for (axis, x) in axes.iter().enumerate().filter_map(|(axis, x)| Some((axis, (*x)?))) {
            let bits = |x: Option<f64>| x.unwrap_or(0.0).to_bits();
            let mut line = [u64::from(s.gpus), u64::from(s.nodes), bits(s.batch), bits(s.power_limit_w)];
            line[axis] = 0;
            lines.entry((&s.profile, &s.gpu_type, axis, line)).or_default().push((x.ln(), y.ln()));
        }
    }
    let mut found = Vec::new();
    for line in lines.values_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.extend(line.windows(4).filter_map(third_difference));
    }
    let count = found.len();
    (median(found), count)
}

/// Third divided difference of four points, scaled to noise of size one.
fn third_difference(points: &[(f64, f64)]) -> Option<f64> {
    let others = |i: usize| (0..4).filter(move |j| *j != i);
    let weights: Vec<f64> =
        (0..4).map(|i| others(i).map(|j| 1.0 / (points[i].0 - points[j].0)).product()).collect();
    let sum: f64 = weights.iter().zip(points).map(|(w, p)| w * p.1).sum();
    Some(sum.abs() / weights.iter().map(|w| w * w).sum::<f64>().sqrt()).filter(|d| d.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_what_no_smooth_curve_explains() {
        let of = |noise: f64| {
            let row = |gpus: u32| Sample {
                gpus,
                nodes: 1,
                epoch_s: Some(
                    100.0
                        * f64::from(gpus).powf(-0.8)
                        * if gpus.is_multiple_of(2) { 1.0 + noise } else { 1.0 },
                ),
                ..Sample::default()
            };
            floor(&(1..30).map(row).collect::<Vec<_>>(), |s| s.epoch_s).0
        };
        assert!(of(0.0) < 1e-9 && (0.02..0.1).contains(&of(0.1)), "{} {}", of(0.0), of(0.1));
    }
}
