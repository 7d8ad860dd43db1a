//! Cross-validation of a held-out profile: its errors by the amount of evidence, in the order
//! evidence usually arrives.

use andreas_core::GpuType;

use crate::conformal::{EvidenceBucket, OWN_ROWS, SITUATIONS};
use crate::curve_prior::KernelParameters;
use crate::expected::Expected;
use crate::physics::Quantity;
use crate::posterior::Found;
use crate::quantity_model::{Family, QuantityModel, QuantitySample};
use crate::spread::{place, spread};

/// Most known rows of a profile, and most rows predicted in one bucket.
const KNOWN: usize = 48;
const ASKED: usize = 48;
/// Most GPU types predicted per profile.
const TYPES: usize = 4;
/// Folds of a profile's rows.
const TURNS: usize = 5;

/// Errors over standard deviations by evidence bucket: parts of the profile's rows are known, with
/// `expected` as prior.
pub(crate) fn ask(stage: &QuantityModel, expected: Expected, family: &Family) -> [Vec<f64>; SITUATIONS] {
    let asking = Questioner { stage, expected, kernel: stage.kernel };
    let mut found: [Vec<f64>; SITUATIONS] = Default::default();
    let mut types: Vec<&GpuType> = family.spots.iter().map(|s| &s.gpu_type).collect();
    types.sort();
    types.dedup();
    for gpu_type in types.into_iter().take(TYPES) {
        let (here, others) = parted(&family.spots, |_, s| s.gpu_type == *gpu_type);
        let others = spread(&others, KNOWN);
        let n = here.len();
        let mut ask =
            |situation: EvidenceBucket, others: &[QuantitySample], is_known: &dyn Fn(usize) -> bool| {
                let (known, asked) = parted(&here, |i, _| is_known(i));
                let rows = [others, &known].concat();
                found[situation as usize].extend(asking.errors(&rows, &spread(&asked, ASKED)));
            };
        if !others.is_empty() {
            ask(EvidenceBucket::New, &others, &|_| false);
        }
        // Without any row, time depends on the intercept alone, but draw can be predicted from
        // other profiles.
        if stage.quantity == Quantity::Power {
            ask(EvidenceBucket::Nothing, &[], &|_| false);
        }
        for (alone, known) in [(EvidenceBucket::First, 1), (EvidenceBucket::Second, 2)]
            .into_iter()
            .filter(|(_, known)| *known < n)
        {
            let first = first(&here, known);
            if !others.is_empty() {
                ask(EvidenceBucket::One, &others, &|i| first.contains(&i));
            }
            ask(alone, &[], &|i| first.contains(&i));
        }
        // Short curves use three known rows where longer ones use four.
        let known = n.saturating_sub(1).min(4);
        if known > 2 {
            if !others.is_empty() {
                // Evenly spread rows.
                ask(EvidenceBucket::Few, &others, &|i| {
                    (0..known).any(|k| (2 * k + 1) * n / (2 * known) == i)
                });
            }
            let first = first(&here, known);
            ask(EvidenceBucket::Early, &[], &|i| first.contains(&i));
        }
        // Runs may come in another order: on short curves, leave each row out in turn.
        if (2..=OWN_ROWS).contains(&n) {
            for missing in 0..n {
                ask(EvidenceBucket::of(n - 1, n - 1), &[], &|i| i != missing);
                if !others.is_empty() {
                    ask(EvidenceBucket::of(n - 1, n), &others, &|i| i != missing);
                }
            }
        }
    }
    if family.spots.len() >= OWN_ROWS {
        found[EvidenceBucket::Many as usize] = asking.in_turns(&spread(&family.spots, KNOWN));
    }
    found
}

/// k-fold errors over standard deviations of the measured rows, a fifth left out at a time: with
/// one row left out, its neighbours would make it too easy. Table rows stay.
pub(crate) fn in_turns(
    stage: &QuantityModel,
    spots: &[QuantitySample],
    expected: &Expected,
    kernel: KernelParameters,
) -> Vec<f64> {
    Questioner { stage, expected: expected.clone(), kernel }.in_turns(spots)
}

/// Evaluates one profile.
struct Questioner<'a> {
    stage: &'a QuantityModel,
    expected: Expected,
    kernel: KernelParameters,
}

impl Questioner<'_> {
    fn errors(&self, rows: &[QuantitySample], asked: &[QuantitySample]) -> Vec<f64> {
        let level = match self.stage.quantity {
            Quantity::Time => self.stage.free_level(rows, &self.expected),
            Quantity::Power => Found::default(),
        };
        let curve = self.stage.curve_of(rows, self.expected.clone(), level, self.kernel);
        let error = |spot: &QuantitySample| {
            let (mean, variance) = curve.at(spot);
            // Intervals are for the next observation: these errors include measurement noise.
            (spot.log - mean) / libm::sqrt(variance)
        };
        asked.iter().map(error).collect()
    }

    fn in_turns(&self, spots: &[QuantitySample]) -> Vec<f64> {
        let turn = |turn: usize| {
            let is_asked = |i: usize, s: &QuantitySample| {
                s.table.is_none() && (place(i) * TURNS as f64) as usize == turn
            };
            let (asked, rows) = parted(spots, is_asked);
            if rows.is_empty() { Vec::new() } else { self.errors(&rows, &asked) }
        };
        (0..TURNS).flat_map(turn).collect()
    }
}

/// Splits samples by a predicate.
fn parted(
    spots: &[QuantitySample],
    is: impl Fn(usize, &QuantitySample) -> bool,
) -> (Vec<QuantitySample>, Vec<QuantitySample>) {
    let of = |wanted: bool| {
        let picked = spots.iter().enumerate().filter(|(i, spot)| is(*i, spot) == wanted);
        picked.map(|(_, spot)| spot.clone()).collect()
    };
    (of(true), of(false))
}

/// The first rows of a profile: the middle batch on the fewest GPUs without a limit, then more
/// GPUs, then the smallest and the largest batch on the fewest.
fn first(here: &[QuantitySample], known: usize) -> Vec<usize> {
    let by = |key: &dyn Fn(&QuantitySample) -> [f64; 3]| {
        let mut order: Vec<(usize, [f64; 3])> = here.iter().map(key).enumerate().collect();
        order.sort_by(|(i, a), (j, b)| {
            let differ = a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne());
            differ.unwrap_or(std::cmp::Ordering::Equal).then(i.cmp(j))
        });
        order.into_iter().map(|(i, _)| i).collect::<Vec<usize>>()
    };
    let fewest = here.iter().map(|s| s.setting.gpus).fold(f64::INFINITY, f64::min);
    let start = by(&|s| [s.setting.gpus, -s.setting.depth, s.setting.batch.abs()]);
    let per_gpu = |s: &QuantitySample| (s.setting.batch - s.setting.gpus * std::f64::consts::LN_2).abs();
    let next =
        by(&|s| [if s.setting.gpus > fewest { s.setting.gpus } else { 1e9 }, -s.setting.depth, per_gpu(s)]);
    let small = by(&|s| [s.setting.gpus, -s.setting.depth, s.setting.batch]);
    let large = by(&|s| [s.setting.gpus, -s.setting.depth, -s.setting.batch]);
    let mut found: Vec<usize> = Vec::new();
    for i in [start[0], next[0], small[0], large[0]].into_iter().chain(start) {
        if found.len() < known && !found.contains(&i) {
            found.push(i);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physics::Setting;

    fn spot(gpus: f64, batch: f64, depth: f64) -> QuantitySample {
        let setting = Setting { gpus, batch, depth, ..Setting::default() };
        QuantitySample {
            gpu_type: "T4".into(),
            law: 0.0,
            setting,
            log: 5.0 - 0.6 * gpus,
            noise: 0.01,
            table: None,
        }
    }

    fn family(spots: Vec<QuantitySample>) -> Family {
        let (name, size) = ("ns/job".to_owned(), crate::ratio::Size::default());
        Family { name, model: None, size, spots }
    }

    #[test]
    fn each_measured_row_is_left_out_once_and_no_row_of_a_table() {
        let stage = QuantityModel::fit(Quantity::Time, &[]);
        let mut spots: Vec<QuantitySample> = (0..13).map(|i| spot(f64::from(i) / 4.0, 0.0, 0.0)).collect();
        spots.iter_mut().take(3).for_each(|s| s.table = Some(0.25));
        // given: one row that is off by a factor of ten
        spots[7].log += std::f64::consts::LN_10;
        let family = family(spots);
        let expected = stage.expect(&family);
        let errors = in_turns(&stage, &family.spots, &expected, KernelParameters::USUAL);
        assert_eq!(errors.len(), 10);
        assert_eq!(errors.iter().filter(|e| e.abs() > 10.0).count(), 1, "{errors:?}");
    }

    #[test]
    fn one_is_asked_in_the_situations_that_its_rows_allow() {
        let stage = QuantityModel::fit(Quantity::Time, &[]);
        let asked = |spots: Vec<QuantitySample>| {
            let family = family(spots);
            ask(&stage, stage.expect(&family), &family).map(|errors| errors.len())
        };
        let rows = |n: u8| (0..n).map(|i| spot(f64::from(i), 0.0, 0.0)).collect::<Vec<_>>();
        use EvidenceBucket::{Early, First, Many, One, Second};
        let one_type = [rows(1), rows(2), rows(3), rows(12)].map(asked);
        let informed = |of: EvidenceBucket| one_type.map(|found| found[of as usize] > 0);
        assert_eq!(informed(First), [false, true, true, true]);
        assert_eq!(informed(Second), [false, false, true, true]);
        assert_eq!(informed(Early), [false, false, false, true]);
        assert_eq!(informed(Many), [false, false, false, true]);
        let other = |s: QuantitySample| QuantitySample { gpu_type: "V100".into(), ..s };
        let two_types = asked([rows(2), rows(2).into_iter().map(other).collect()].concat());
        assert!(
            two_types[EvidenceBucket::New as usize] == 4
                && two_types[One as usize] > 0
                && one_type[3][One as usize] == 0
        );
    }

    #[test]
    fn a_family_starts_in_the_middle_without_a_limit_on_the_fewest_gpus() {
        let rows: Vec<QuantitySample> = [0.0, 1.0]
            .into_iter()
            .flat_map(|gpus| [-1.0, 0.1, 2.0].map(|batch| (gpus, batch)))
            .flat_map(|(gpus, batch)| [-0.7, 0.0].map(|depth| spot(gpus, batch, depth)))
            .collect();
        let at = |i: &usize| (rows[*i].setting.gpus, rows[*i].setting.batch, rows[*i].setting.depth);
        let found: Vec<_> = first(&rows, 4).iter().map(at).collect();
        assert_eq!(found, [(0.0, 0.1, 0.0), (1.0, 0.1, 0.0), (0.0, -1.0, 0.0), (0.0, 2.0, 0.0)]);
    }
}
