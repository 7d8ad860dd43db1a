//! Gavel's cost policy with deadlines (Narayanan et al., OSDI 2020; stanford-futuredata/gavel at c4fa4009).

use super::{Policy, Preference, View, levels};
use crate::instance::Instance;

/// A linear programme says for which part of the time each job is to run on each GPU type: it makes the sum of throughput per cost as large
/// as possible, where every job makes its deadline at that speed. Rounds carry it out: in each, pairs of job and type are served by the
/// time they are to have over the time they had, if they fit. The number of GPUs is the user's.
///
/// Departures: where not all deadlines can be met the published code drops *all* of them; here a job that falls short costs its weight
/// instead, so that the least important do. Throughputs are summed there as steps per second of whatever model; here they are parts of a
/// job's own best, so that no model counts more for its units. Cost is the energy a job takes there, not a rent. The programme is
/// solved by prices and averaging (`solve`), to about a hundredth. Sharing of GPUs by two jobs is not here.
pub(super) struct Gavel;

/// A job that falls short of its deadline by all of its speed costs as much as so many times what it can gain, at the mean weight.
const SHORTFALL: f64 = 10.0;
/// Less than this part of the time is none.
const NONE: f64 = 1e-3;

/// One job of the programme.
struct Row {
    job: usize,
    /// By GPU type: configuration, GPUs, speed and gain at full time. Speeds and gains are parts of the job's best.
    options: Vec<Choice>,
    /// Speed it needs to be in time.
    need: f64,
    /// What falling short of that costs, for the whole of its speed.
    penalty: f64,
}

struct Choice {
    kind: usize,
    config: usize,
    gpus: f64,
    speed: f64,
    gain: f64,
}

impl Policy for Gavel {
    fn wishes(&self, view: &View<'_, '_>) -> Vec<Preference> {
        let instance = view.instance;
        let rows = rows(view);
        let room: Vec<f64> = (0..instance.types.len()).map(|kind| view.free(kind) as f64).collect();
        let parts = solve(&rows, &room);
        let mut pairs = Vec::new();
        for (row, parts) in rows.iter().zip(&parts) {
            let memory = view.memory.job(instance, row.job);
            let age = (instance.now - instance.jobs[row.job].job.submit.0).max(1.0);
            for (choice, part) in row.options.iter().zip(parts).filter(|(_, part)| **part > NONE) {
                let name = &instance.types[choice.kind].name;
                let had = memory.and_then(|m| m.received.get(name)).map_or(0.0, |s| s.0 / age);
                // Who had nothing of what it is to have comes first, as published.
                let priority = if had > 0.0 { part / had } else { part * 1e9 };
                pairs.push((priority, *part, row.job, choice.config));
            }
        }
        pairs.sort_by(|a, b| {
            b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3))
        });
        pairs.into_iter().map(|(_, _, job, config)| Preference { job, configs: vec![config] }).collect()
    }
}

fn rows(view: &View<'_, '_>) -> Vec<Row> {
    let instance = view.instance;
    let weights = || view.open().map(|job| instance.jobs[job].weight);
    let mean = weights().sum::<f64>() / weights().count().max(1) as f64;
    view.open()
        .filter_map(|job| {
            let data = &instance.jobs[job];
            let choices: Vec<usize> =
                (0..instance.types.len()).filter_map(|kind| asked_for(instance, job, kind)).collect();
            let time = |c: usize| data.configs[c].time.max(f64::MIN_POSITIVE);
            // Work for each joule, overhead of its nodes included.
            let thrift = |c: usize| {
                let config = &data.configs[c];
                let watts = config.power + instance.types[config.kind].overhead * f64::from(config.nodes);
                1.0 / (time(c) * watts.max(1e-9))
            };
            let fastest = choices.iter().map(|c| time(*c)).reduce(f64::min)?;
            let thriftiest = choices.iter().map(|c| thrift(*c)).fold(0.0, f64::max);
            let options = choices.iter().map(|&c| Choice {
                kind: data.configs[c].kind,
                config: c,
                gpus: data.configs[c].total_gpus() as f64,
                speed: fastest / time(c),
                gain: thrift(c) / thriftiest.max(f64::MIN_POSITIVE),
            });
            let left = data.deadline - instance.now;
            let need = if left > 0.0 { (fastest / left).min(1.0) } else { 1.0 };
            let penalty = if mean > 0.0 { SHORTFALL * data.weight / mean } else { SHORTFALL };
            Some(Row { job, options: options.collect(), need, penalty })
        })
        .collect()
}

/// The configuration on a type with what the user asked for, else the least it can use.
fn asked_for(instance: &Instance<'_>, job: usize, kind: usize) -> Option<usize> {
    let levels = levels(instance, job, kind);
    let wanted = instance.jobs[job].job.requested_gpus.map(|g| i64::from(g.0));
    let same = levels.iter().copied().find(|c| Some(instance.jobs[job].configs[*c].total_gpus()) == wanted);
    if wanted.is_some() { same } else { levels.first().copied() }
}

/// Steps of the prices.
const STEPS: u32 = 400;

/// For each row the part of the time on each of its options: maximises the sum of gains, less penalties for speed that is missing, where
/// no type is used more than there is.
///
/// By a price for the GPUs of each type, raised where too much is asked for (subgradient), and the mean of the answers of the second
/// half, which tends to a solution of the programme.
fn solve(rows: &[Row], room: &[f64]) -> Vec<Vec<f64>> {
    let mut prices = vec![0.0_f64; room.len()];
    let mut sums: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.options.len()]).collect();
    let mut kept = 0.0;
    for step in 0..STEPS {
        let mut used = vec![0.0; room.len()];
        let keep = step >= STEPS / 2;
        for (row, sum) in rows.iter().zip(&mut sums) {
            for (i, part) in answer(row, &prices) {
                used[row.options[i].kind] += part * row.options[i].gpus;
                if keep {
                    sum[i] += part;
                }
            }
        }
        kept += if keep { 1.0 } else { 0.0 };
        let size = 1.0 / libm::sqrt(f64::from(step) + 1.0);
        for ((price, used), room) in prices.iter_mut().zip(&used).zip(room) {
            // By the part that is asked for too much, so that steps are alike for many GPUs and few.
            *price = (*price + size * (used - room) / room.max(1.0)).max(0.0);
        }
    }
    for sum in &mut sums {
        sum.iter_mut().for_each(|part| *part /= kept);
    }
    sums
}

/// The best a row can do at these prices: one option all the time, none, or two of these so that the need is met exactly.
fn answer(row: &Row, prices: &[f64]) -> Vec<(usize, f64)> {
    let net = |i: usize| {
        let choice = &row.options[i];
        choice.gain - choice.gpus * prices[choice.kind]
    };
    // The last one stands for nothing: no speed, no gain.
    let nothing = row.options.len();
    let point = |i: usize| if i == nothing { (0.0, 0.0) } else { (row.options[i].speed, net(i)) };
    let missed = |speed: f64| row.penalty * (row.need - speed).max(0.0);
    let mut best = (f64::NEG_INFINITY, (nothing, nothing, 1.0));
    let mut offer = |value: f64, mix| {
        if value > best.0 {
            best = (value, mix);
        }
    };
    for a in 0..=nothing {
        let (speed, gain) = point(a);
        offer(gain - missed(speed), (a, a, 1.0));
        for b in 0..=nothing {
            let (slower, other) = point(b);
            if speed > row.need && slower < row.need {
                let part = (row.need - slower) / (speed - slower);
                offer(part * gain + (1.0 - part) * other, (a, b, part));
            }
        }
    }
    let (a, b, part) = best.1;
    [(a, part), (b, 1.0 - part)].into_iter().filter(|(i, part)| *i != nothing && *part > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(options: &[(f64, f64)], need: f64, penalty: f64) -> Row {
        let option = |(kind, (speed, gain)): (usize, &(f64, f64))| Choice {
            kind,
            config: kind,
            gpus: 1.0,
            speed: *speed,
            gain: *gain,
        };
        Row { job: 0, options: options.iter().enumerate().map(option).collect(), need, penalty }
    }

    /// Parts within three hundredths.
    fn near(parts: &[Vec<f64>], wanted: &[&[f64]]) {
        for (part, wanted) in parts.iter().flatten().zip(wanted.iter().copied().flatten()) {
            assert!((part - wanted).abs() < 0.03, "{parts:?}, not {wanted:?}");
        }
    }

    #[test]
    fn the_scarce_type_goes_to_who_gains_most_by_it() {
        // Two jobs, one GPU of each of two types: the first job hardly loses on the second type.
        let rows = [row(&[(1.0, 1.0), (0.9, 0.9)], 0.0, 0.0), row(&[(1.0, 1.0), (0.3, 0.3)], 0.0, 0.0)];
        near(&solve(&rows, &[1.0, 1.0]), &[&[0.0, 1.0], &[1.0, 0.0]]);
    }

    #[test]
    fn who_must_be_in_time_gets_as_much_of_the_fast_type_as_it_needs() {
        // The slow type is the thriftier one; alone it is too slow: 0.4 a + 1.0 (1 - a) = 0.7.
        let rows = [row(&[(1.0, 0.5), (0.4, 1.0)], 0.7, 10.0)];
        near(&solve(&rows, &[1.0, 1.0]), &[&[0.5, 0.5]]);
    }

    #[test]
    fn where_not_all_can_be_in_time_the_least_important_is_late() {
        // Both need all of the one GPU. The published code would forget both deadlines.
        let rows = [row(&[(1.0, 1.0)], 1.0, 30.0), row(&[(1.0, 1.0)], 1.0, 3.0)];
        near(&solve(&rows, &[1.0]), &[&[1.0], &[0.0]]);
    }
}
