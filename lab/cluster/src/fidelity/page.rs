//! The page: predicted over real, by workload and method. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use andreas_baselines::Method;
use andreas_e2e::replanned::SamePlans;
use andreas_simulator::Spread;

use super::replayed::LeftOut;
use super::{Compared, Figures, Workload};

/// So many runs of a workload and method say something of their spread.
const ENOUGH: usize = 5;

const HEAD: &str = "# Fidelity of the simulator

Written by `make lab WHAT=fidelity`. The demo's jobs (Microsoft's ITP trace, 350 seconds of it in one) run on
a real control plane with twelve pretend nodes, whose containers are processes and whose GPUs are
simulated. Then the simulator replays each run: the same instants of submission, the run's own mean
delays, and the operator's knowledge (the users' tables, what earlier runs of a profile showed, the
rule for unknown jobs). Tables have *replay / run* as mean ± standard deviation over runs. A run
lasts two minutes and jobs some seconds, so delays weigh a hundred times as much as on a cluster
where jobs take hours. The operator has no method with fixed requests: under `fifo-fixed` it plans by
`fifo`, and each job may have only the number of GPUs that it asks for.

Goals: turnaround (mean and p95) and energy within 5 %, restarts within 20 %, cost within 8 %, the
same ranking of methods, the same plan from the same snapshot. The original publication claims 13 %.

`lab/docs/fidelity.jsonl` keeps the runs, one a line. `make lab WHAT=fidelity FIDELITY_ARGS=\"--runs 0\"`
replays them with this build and writes this page. A page of more runs than the file has stays.
";

/// After the table of ratios.
const UNDER_RATIOS: &str = "
Restarts and late jobs are means of replay and run, and so is what misses cost: each missed deadline
has a fixed price.
";

/// A run and its replay in one line.
pub fn line(compared: &Compared) -> String {
    let of = |one: &Figures| {
        format!(
            "turnaround {:.1} s, late {}, restarts {}, GPUs {:.3} kWh, hosts {:.3} kWh, cost {:.3}",
            one.mean_turnaround_s, one.late, one.restarts, one.energy_kwh, one.host_kwh, one.cost
        )
    };
    format!("  run:    {}\n  replay: {}", of(&compared.run.figures), of(&compared.replay))
}

/// A run or its replay.
struct Side<'a> {
    totals: &'a Figures,
    turnarounds: &'a BTreeMap<String, f64>,
    misses: f64,
}

fn replay(one: &Compared) -> Side<'_> {
    Side { totals: &one.replay, turnarounds: &one.turnarounds, misses: one.misses[0] }
}

fn run(one: &Compared) -> Side<'_> {
    Side { totals: &one.run.figures, turnarounds: &one.run.turnarounds, misses: one.misses[1] }
}

/// A figure of a run or its replay.
type Figure = fn(&Side<'_>) -> f64;

/// The figures that are compared, with how far a replay may be off.
const FIGURES: [(&str, Figure, f64); 6] = [
    ("mean turnaround", |side| side.totals.mean_turnaround_s, 0.05),
    ("p95 of turnaround", |side| p95(side.turnarounds), 0.05),
    ("GPU energy", |side| side.totals.energy_kwh, 0.05),
    ("host energy", |side| side.totals.host_kwh, 0.05),
    ("cost", |side| side.totals.cost, 0.08),
    ("restarts", |side| side.totals.restarts as f64, 0.2),
];

/// Runs that a page was made of; 0 where it does not say.
pub fn runs_of(page: &str) -> usize {
    page.lines().find_map(|line| line.split_once(" runs, ")?.0.parse().ok()).unwrap_or(0)
}

/// The whole page.
pub fn page(all: &[Compared]) -> String {
    let mut page = HEAD.to_owned();
    let mut dates: Vec<&str> = all.iter().map(|one| one.run.date.as_str()).collect();
    dates.sort_unstable();
    dates.dedup();
    let _ = writeln!(page, "\n{} runs, {}.\n\n## Replay over run\n", all.len(), dates.join(", "));
    page += "| workload | method | runs | mean turnaround | p95 | GPU energy | host energy | cost | restarts | late | misses, cost |\n";
    page += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (workload, method, group) in groups(all) {
        let ratio = |at: usize| text(ratios(&group, FIGURES[at].1));
        let both = |figure: Figure, digits: usize| means(&group, figure, digits);
        let _ = writeln!(
            page,
            "| {} | {method} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            workload.as_str(),
            group.len(),
            ratio(0),
            ratio(1),
            ratio(2),
            ratio(3),
            ratio(4),
            both(FIGURES[5].1, 1),
            both(|side| side.totals.late as f64, 1),
            both(|side| side.misses, 2),
        );
    }
    page += UNDER_RATIOS;
    if groups(all).iter().any(|(.., group)| group.len() < ENOUGH) {
        let _ =
            writeln!(page, "Rows of fewer than {ENOUGH} runs are examples: they say nothing of the spread.");
    }
    page += &goals(all);
    page += &ranking(all);
    page += &same_plans(all);
    page += &left_out(all);
    page += &delays(all);
    page
}

fn groups(all: &[Compared]) -> Vec<(Workload, Method, Vec<&Compared>)> {
    let pairs = Workload::ALL.into_iter().flat_map(|w| Method::ALL.into_iter().map(move |m| (w, m)));
    let of = |(w, m)| {
        (w, m, all.iter().filter(|one| one.run.workload == w && one.run.method == m).collect::<Vec<_>>())
    };
    pairs.map(of).filter(|(.., group)| !group.is_empty()).collect()
}

fn ratios(group: &[&Compared], figure: Figure) -> Spread {
    let both = group.iter().map(|one| (figure(&replay(one)), figure(&run(one))));
    Spread::from_values(both.filter(|(_, run)| *run > 0.0).map(|(replay, run)| replay / run))
}

/// Means of the replays and of the runs.
fn means(group: &[&Compared], figure: Figure, digits: usize) -> String {
    let mean =
        |of: fn(&Compared) -> Side<'_>| Spread::from_values(group.iter().map(|one| figure(&of(one)))).mean;
    format!("{:.digits$} / {:.digits$}", mean(replay), mean(run))
}

fn text(ratio: Spread) -> String {
    format!("{:.2} ± {:.2}", ratio.mean, ratio.sd)
}

fn p95(turnarounds: &BTreeMap<String, f64>) -> f64 {
    let mut times: Vec<f64> = turnarounds.values().copied().collect();
    times.sort_by(f64::total_cmp);
    times.get((times.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// In how many groups the mean is within the goal.
fn goals(all: &[Compared]) -> String {
    let groups = groups(all);
    let mut table = "\n## Goals\n\n| figure | may be off by | within | met |\n|---|---|---|---|\n".to_owned();
    for (name, figure, goal) in FIGURES {
        let with: Vec<_> =
            groups.iter().filter(|(.., g)| g.iter().any(|one| figure(&run(one)) > 0.0)).collect();
        let near = with.iter().filter(|(.., g)| (ratios(g, figure).mean - 1.0).abs() <= goal).count();
        let met = met(near == with.len() && near > 0);
        let _ =
            writeln!(table, "| {name} | {:.0} % | {near} of {} groups | {met} |", goal * 100.0, with.len());
    }
    let (within, met) = match all_plans(&all.iter().collect::<Vec<_>>()) {
        Some(SamePlans { again, same, .. }) => {
            (format!("{same} of {again} plans"), met(same == again && again > 0))
        }
        None => ("not measured in these runs".to_owned(), "-"),
    };
    let _ = writeln!(table, "| the same plan from the same snapshot | 0 % | {within} | {met} |");
    table
}

fn met(met: bool) -> &'static str {
    if met { "yes" } else { "**missed**" }
}

/// Plans of runs that were made again, together; `None` if none were.
fn all_plans(runs: &[&Compared]) -> Option<SamePlans> {
    let sum = |a: SamePlans, b: SamePlans| SamePlans {
        made: a.made + b.made,
        again: a.again + b.again,
        same: a.same + b.same,
    };
    runs.iter().filter_map(|one| one.run.plans).reduce(sum)
}

/// Whether a saved snapshot gives the plan that the operator made of it.
fn same_plans(all: &[Compared]) -> String {
    let mut section = "\n## Same snapshot, same plan\n\n".to_owned();
    let rows: Vec<_> = groups(all).into_iter().filter_map(|(w, m, g)| Some((w, m, all_plans(&g)?))).collect();
    if rows.is_empty() {
        return section + "Not measured in these runs.\n";
    }
    section += "While a run went on, the operator's last plan was read with its snapshot five times a second\n\
        (`GET /snapshot`). Afterwards each snapshot was planned again. The same\n\
        plan is one whose JSON is equal to the last digit. A plan that the next one replaced before it was read\n\
        is in the first column alone.\n\n\
        | workload | method | plans made | planned again | the same |\n|---|---|---|---|---|\n";
    for (workload, method, SamePlans { made, again, same }) in rows {
        let _ = writeln!(section, "| {} | {method} | {made} | {again} | {same} |", workload.as_str());
    }
    section
}

/// Methods by cost, on the test bed and in the replays.
fn ranking(all: &[Compared]) -> String {
    let mut section =
        "\n## Ranking by cost\n\n| workload | test bed | replay | same |\n|---|---|---|---|\n".to_owned();
    for workload in Workload::ALL {
        let order = |pick: fn(&Compared) -> &Figures| {
            let of = groups(all).into_iter().filter(|(w, ..)| *w == workload);
            let mut costs: Vec<(f64, Method)> = of
                .map(|(_, m, g)| (Spread::from_values(g.iter().map(|one| pick(one).cost)).mean, m))
                .collect();
            costs.sort_by(|a, b| a.0.total_cmp(&b.0));
            costs
        };
        let (run, replay) = (order(|one| &one.run.figures), order(|one| &one.replay));
        if run.is_empty() {
            continue;
        }
        let names = |of: &[(f64, Method)]| {
            let each: Vec<String> = of.iter().map(|(cost, method)| format!("{method} {cost:.2}")).collect();
            each.join(", ")
        };
        let same = run.iter().map(|(_, m)| m).eq(replay.iter().map(|(_, m)| m));
        let same = if same { "yes" } else { "**no**" };
        let _ =
            writeln!(section, "| {} | {} | {} | {same} |", workload.as_str(), names(&run), names(&replay));
    }
    section
}

/// What a replay loses with each thing that it does not know.
fn left_out(all: &[Compared]) -> String {
    let with: Vec<&Compared> = all.iter().filter(|one| !one.others.is_empty()).collect();
    let mut section = "\n## What a replay must know\n\nThe default method; means over runs that were replayed in all \
        these ways.\n\n| workload | | runs | restarts | late | mean turnaround, s | cost |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    for workload in Workload::ALL {
        let of: Vec<&Compared> = with
            .iter()
            .filter(|one| one.run.workload == workload && one.run.method == Method::default())
            .copied()
            .collect();
        let mut row = |name: &str, pick: &dyn Fn(&Compared) -> Option<Figures>| {
            let rows: Vec<Figures> = of.iter().filter_map(|one| pick(one)).collect();
            if rows.is_empty() {
                return;
            }
            let mean = |figure: fn(&Figures) -> f64| Spread::from_values(rows.iter().map(figure)).mean;
            let _ = writeln!(
                section,
                "| {} | {name} | {} | {:.1} | {:.1} | {:.1} | {:.2} |",
                workload.as_str(),
                rows.len(),
                mean(|one| one.restarts as f64),
                mean(|one| one.late as f64),
                mean(|one| one.mean_turnaround_s),
                mean(|one| one.cost)
            );
        };
        row("test bed", &|one| Some(one.run.figures.clone()));
        for left_out in LeftOut::ALL {
            let name = format!("replay {}", left_out.as_str());
            row(&name, &|one| match left_out {
                LeftOut::Nothing => Some(one.replay.clone()),
                _ => one.others.get(&left_out).cloned(),
            });
        }
    }
    section
}

fn delays(all: &[Compared]) -> String {
    // A run without any stop says nothing of stops.
    let of = |pick: fn(&Compared) -> f64| {
        text(Spread::from_values(all.iter().map(pick).filter(|delay| *delay > 0.0)))
    };
    format!(
        "\n## Delays\n\nMeans over runs, s: decision {}, first start {}, stop {},\nrestart {}.\n",
        of(|one| one.run.delays.decision),
        of(|one| one.run.delays.first_start),
        of(|one| one.run.delays.stop),
        of(|one| one.run.delays.restart)
    )
}

#[cfg(test)]
mod tests {
    use super::super::TestBedRun;
    use super::super::measured::Delays;
    use super::*;

    fn compared(method: Method, run: f64, replay: f64) -> Compared {
        let figures = |cost: f64| Figures {
            replayed: false,
            finished: 2,
            late: 1,
            weighted_tardiness: 0.0,
            mean_turnaround_s: 10.0 * cost,
            energy_kwh: 1.0,
            host_kwh: 1.0,
            cost,
            restarts: 0,
        };
        let times = |a: f64, b: f64| BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        Compared {
            run: TestBedRun {
                date: "2026-11-24".into(),
                workload: Workload::All,
                method,
                submits: times(0.0, 1.0),
                delays: Delays::default(),
                figures: figures(run),
                turnarounds: times(10.0, 20.0),
                plans: None,
            },
            replay: figures(replay),
            others: [(LeftOut::Delays, figures(5.0))].into(),
            turnarounds: times(11.0, 30.0),
            misses: [0.25, 2.5],
        }
    }

    #[test]
    fn goals_that_are_missed_and_another_order_of_methods_are_named() {
        let same = page(&[compared(Method::Fifo, 2.0, 2.0), compared(Method::Edf, 1.0, 1.02)]);
        assert_eq!((runs_of(&same), runs_of("")), (2, 0), "a page of fewer runs does not take its place");
        assert!(same.contains("| cost | 8 % | 2 of 2 groups | yes |"), "{same}");
        assert!(same.contains("| p95 of turnaround | 5 % | 0 of 2 groups | **missed** |"), "{same}");
        assert!(same.contains("| all | edf 1.00, fifo 2.00 | edf 1.02, fifo 2.00 | yes |"), "{same}");
        assert!(same.contains("1.50 ± 0.00"), "p95 of two jobs is the longer one: {same}");
        assert!(same.contains("| 1.0 / 1.0 | 0.25 / 2.50 |"), "{same}");
        let off = page(&[compared(Method::Fifo, 2.0, 2.0), compared(Method::Edf, 1.0, 3.0)]);
        assert!(off.contains("| cost | 8 % | 1 of 2 groups | **missed** |"), "{off}");
        assert!(off.contains("| **no** |"), "{off}");
        let default = page(&[compared(Method::RandomizedGreedy, 2.0, 2.1)]);
        assert!(
            default.contains("| all | replay without delays | 1 | 0.0 | 1.0 | 50.0 | 5.00 |"),
            "{default}"
        );
        assert!(
            default.contains("| all | replay with all of it | 1 | 0.0 | 1.0 | 21.0 | 2.10 |"),
            "{default}"
        );
    }

    #[test]
    fn one_plan_that_came_out_otherwise_misses_the_goal() {
        let with = |same| {
            let mut one = compared(Method::Fifo, 1.0, 1.0);
            one.run.plans = Some(SamePlans { made: 12, again: 10, same });
            one
        };
        let unmeasured = compared(Method::FifoFixed, 1.0, 1.0);
        let all = page(&[with(10), with(10), unmeasured.clone()]);
        assert!(
            all.contains("| the same plan from the same snapshot | 0 % | 20 of 20 plans | yes |"),
            "{all}"
        );
        assert!(
            all.contains("| all | fifo | 24 | 20 | 20 |") && !all.contains("| all | fifo-fixed | 0"),
            "{all}"
        );
        let off = page(&[with(10), with(9)]);
        assert!(off.contains("| 19 of 20 plans | **missed** |"), "{off}");
        let none = page(&[unmeasured]);
        assert!(none.contains("| not measured in these runs | - |"), "{none}");
        assert!(none.contains("\n\nNot measured in these runs.\n"), "{none}");
    }
}
