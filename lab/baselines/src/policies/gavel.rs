//! Gavel's cost policy with deadlines (Narayanan et al., OSDI 2020; stanford-futuredata/gavel at c4fa4009).

use andreas_planner::policy::Instance;

use super::ranking::{Preference, Ranking, View, levels};

/// A linear program decides what part of the time each job runs on each GPU type. It maximizes the sum of
/// throughput per cost such that every job meets its deadline. Rounds carry it out: pairs of job and type are
/// served by target time divided by received time, if they fit. The user chooses the number of GPUs.
///
/// Differences: if not all deadlines can be met, the published code drops *all* of them. Here a job that
/// falls short costs its weight instead, so the least important ones fall short. Throughputs there are steps
/// per second of any model; here they are relative to the job's own best. Cost here is energy, not rent. The
/// program is solved by prices and averaging (`solve`), to about 1 %. Sharing of a GPU by two jobs is left
/// out.
pub(super) struct Gavel;

/// Penalty of a job that misses its deadline by its whole speed, as a multiple of its best gain, at the mean
/// weight.
const SHORTFALL: f64 = 10.0;
/// A smaller part of the time counts as 0.
const NONE: f64 = 1e-3;

/// One job of the program.
struct Row {
    job: usize,
    /// By GPU type: configuration, GPUs, speed and gain at full time. Speeds and gains are relative to the
    /// job's best.
    options: Vec<Choice>,
    /// Speed required by the deadline.
    need: f64,
    /// Penalty for missing all of that speed.
    penalty: f64,
}

struct Choice {
    kind: usize,
    config: usize,
    gpus: f64,
    speed: f64,
    gain: f64,
}

impl Ranking for Gavel {
    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        let instance = view.instance;
        let rows = lp_rows(view);
        let room: Vec<f64> =
            (0..instance.types.len()).map(|kind| view.free_gpus_of_type(kind) as f64).collect();
        let parts = solve(&rows, &room);
        let mut pairs = Vec::new();
        for (row, parts) in rows.iter().zip(&parts) {
            let memory = view.memory.job(instance, row.job);
            let age = (instance.now - instance.jobs[row.job].job.submit.0).max(1.0);
            for (choice, part) in row.options.iter().zip(parts).filter(|(_, part)| **part > NONE) {
                let name = &instance.types[choice.kind].name;
                let had = memory.and_then(|m| m.received.get(name)).map_or(0.0, |s| s.0 / age);
                // Pairs without any received time come first, as published.
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

/// The unassigned jobs as rows of the linear program.
fn lp_rows(view: &View<'_, '_>) -> Vec<Row> {
    let instance = view.instance;
    let weights = || view.unassigned_jobs().map(|job| instance.jobs[job].weight);
    let mean = weights().sum::<f64>() / weights().count().max(1) as f64;
    view.unassigned_jobs()
        .filter_map(|job| {
            let data = &instance.jobs[job];
            let choices: Vec<usize> =
                (0..instance.types.len()).filter_map(|kind| requested_config(instance, job, kind)).collect();
            let time = |c: usize| data.configs[c].time.max(f64::MIN_POSITIVE);
            // Work per joule, including the overhead of its nodes.
            let efficiency = |c: usize| {
                let config = &data.configs[c];
                let watts = config.power + instance.types[config.kind].overhead * f64::from(config.nodes);
                1.0 / (time(c) * watts.max(1e-9))
            };
            let fastest = choices.iter().map(|c| time(*c)).reduce(f64::min)?;
            let most_efficient = choices.iter().map(|c| efficiency(*c)).fold(0.0, f64::max);
            let options = choices.iter().map(|&c| Choice {
                kind: data.configs[c].kind,
                config: c,
                gpus: data.configs[c].total_gpus() as f64,
                speed: fastest / time(c),
                gain: efficiency(c) / most_efficient.max(f64::MIN_POSITIVE),
            });
            let left = data.deadline - instance.now;
            let need = if left > 0.0 { (fastest / left).min(1.0) } else { 1.0 };
            let penalty = if mean > 0.0 { SHORTFALL * data.weight / mean } else { SHORTFALL };
            Some(Row { job, options: options.collect(), need, penalty })
        })
        .collect()
}

/// The configuration on a type with the requested GPUs, else with the fewest.
fn requested_config(instance: &Instance<'_>, job: usize, kind: usize) -> Option<usize> {
    let levels = levels(instance, job, kind);
    let wanted = instance.jobs[job].job.requested_gpus.map(|g| i64::from(g.0));
    let same = levels.iter().copied().find(|c| Some(instance.jobs[job].configs[*c].total_gpus()) == wanted);
    if wanted.is_some() { same } else { levels.first().copied() }
}

/// Number of price updates.
const STEPS: u32 = 400;

/// For each row the part of the time on each of its options. Maximizes the sum of gains less penalties for
/// missing speed, within the GPUs of each type.
///
/// A subgradient method raises the price of GPU types with excess demand. The result is the mean over the
/// second half of the updates, which tends to a solution of the program.
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
            // Relative excess demand, so that step sizes suit many GPUs and few.
            *price = (*price + size * (used - room) / room.max(1.0)).max(0.0);
        }
    }
    for sum in &mut sums {
        sum.iter_mut().for_each(|part| *part /= kept);
    }
    sums
}

/// The best response of a row to these prices: one option all the time, none, or two that together meet the
/// need exactly.
fn answer(row: &Row, prices: &[f64]) -> Vec<(usize, f64)> {
    let net = |i: usize| {
        let choice = &row.options[i];
        choice.gain - choice.gpus * prices[choice.kind]
    };
    // The last index is no option: no speed, no gain.
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

    /// Asserts that parts are equal within 0.03.
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
        // The slow type is more efficient, but too slow alone: 0.4 a + 1.0 (1 - a) = 0.7.
        let rows = [row(&[(1.0, 0.5), (0.4, 1.0)], 0.7, 10.0)];
        near(&solve(&rows, &[1.0, 1.0]), &[&[0.5, 0.5]]);
    }

    #[test]
    fn where_not_all_can_be_in_time_the_least_important_is_late() {
        // Both need the single GPU all the time. The published code would drop both deadlines.
        let rows = [row(&[(1.0, 1.0)], 1.0, 30.0), row(&[(1.0, 1.0)], 1.0, 3.0)];
        near(&solve(&rows, &[1.0]), &[&[1.0], &[0.0]]);
    }
}
