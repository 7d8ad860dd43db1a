//! Costs of starting or changing later, and when a later change means anything.

use super::classes::{Classes, Mask};
use super::cost_table::CostTable;
use super::periods::{self, PERIODS};
use super::prices::{DeferredStart, ShadowPrices};
use super::room::Room;
use crate::instance::Instance;
use crate::snapshot::IntendedChange;

/// Costs of deferred starts and changes, beside those who hold GPUs in one round of the decision.
pub(super) struct DeferredCosts {
    /// By job: its best later start.
    pub later: Vec<Option<DeferredStart>>,
    /// By column: cost of running on it now and changing to the configuration of the best later start; infinite if
    /// that cannot be.
    pub changing: Vec<f64>,
    /// By column: when that change is made.
    starts: Vec<ChangeStart>,
}

/// When a change is made, as indices of starts.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeStart {
    /// The start that is charged.
    charged: u8,
    /// The same, but not before something happens to the class: a plan that waits for room gets it then.
    expected: u8,
}

impl DeferredCosts {
    pub fn new(
        instance: &Instance<'_>,
        (classes, cost_table): (&Classes, &CostTable),
        shadow_prices: &ShadowPrices,
        mut room: Room<'_, '_>,
    ) -> Self {
        let tables = (classes, cost_table);
        let later: Vec<_> = (0..instance.jobs.len())
            .map(|job| shadow_prices.best_later(instance, tables, &mut room, job))
            .collect();
        let news = News::new(instance, classes, cost_table, shadow_prices);
        let mut changing = vec![f64::INFINITY; cost_table.items.len()];
        let mut starts = vec![ChangeStart::default(); cost_table.items.len()];
        for (job, later) in later.iter().enumerate() {
            let Some(later) = later else { continue };
            let restart = one_restart(instance, cost_table, job, later.item);
            let again = postponed_again(instance, cost_table, job, later);
            let news_start = news.first(later.start, later.class);
            let happens = news_start == Some(later.start);
            // At a start at which nothing happens a change costs one more restart. Where there is room it is then
            // cheaper now, so no plan postpones it again and again; where there is none, it may aim at any start.
            let best = (later.start, if happens { 0.0 } else { restart });
            // The start after that at which something happens saves the additional restart. Where restarts are free
            // there is none to save, and a job would only stay where it is for longer than its best start says.
            let next = news_start.filter(|_| !happens && restart > 0.0).map(|start| (start, 0.0));
            for i in cost_table.columns_of(job) {
                for (start, more) in next.into_iter().chain([best]) {
                    let change = DeferredStart { start, ..*later };
                    let cost = shadow_prices.changing(instance, cost_table, (job, i), &change) + more + again;
                    if cost < changing[i] {
                        changing[i] = cost;
                        // A free change needs no room to be expected: it is tried when it is due.
                        starts[i] = match restart > 0.0 {
                            true => news.change_start(&change),
                            false => ChangeStart { charged: start as u8, expected: start as u8 },
                        };
                    }
                }
            }
        }
        Self { later, changing, starts }
    }

    /// Index of the start of the change of a job that runs on a column; `None`: it makes none.
    pub fn change(&self, column: usize) -> Option<usize> {
        self.changing[column].is_finite().then(|| usize::from(self.starts[column].charged))
    }

    /// Index of the start at which there is room for that change.
    pub fn expected_change(&self, column: usize) -> usize {
        usize::from(self.starts[column].expected)
    }
}

/// Cost of a restart on a column, with its wear.
fn one_restart(instance: &Instance<'_>, cost_table: &CostTable, job: usize, item: usize) -> f64 {
    let data = &instance.jobs[job];
    cost_table.restart_cost(instance, data, item, cost_table.delay[job], data.restart + data.job.lost.0)
}

/// Cost of postponing a change that the last plan intended for now: a restart. Without it an intention would be
/// given up for the smallest gain of a later one.
fn postponed_again(
    instance: &Instance<'_>,
    cost_table: &CostTable,
    job: usize,
    change: &DeferredStart,
) -> f64 {
    let data = &instance.jobs[job];
    let config = &data.configs[change.item - cost_table.columns_of(job).start];
    let due = |intended: &&IntendedChange| {
        intended.at <= instance.snapshot.now && intended.config_is(instance, config)
    };
    match data.intended.filter(due) {
        Some(_) if data.current().is_some() => one_restart(instance, cost_table, job, change.item),
        _ => 0.0,
    }
}

/// Starts at which something happens to a class: an edge of tariff or budget, an expected end, a falling price.
/// At any other start a change for which there is room would be no better than now. A plan that postponed it to
/// then would postpone it again and never make it.
struct News {
    /// By start: classes to which something happens.
    classes: [Mask; PERIODS],
    starts: usize,
}

impl News {
    fn new(
        instance: &Instance<'_>,
        classes: &Classes,
        cost_table: &CostTable,
        shadow_prices: &ShadowPrices,
    ) -> Self {
        let periods = &cost_table.periods;
        let starts = periods.count();
        let mut news = Self { classes: [0; PERIODS], starts };
        for edge in periods::edges(instance) {
            // The start at the edge, or the one close before it.
            let at = periods.nearest(edge);
            if at > 0 {
                news.classes[at] = Mask::MAX;
            }
        }
        for (start, mask) in news.classes.iter_mut().enumerate().take(starts).skip(1) {
            let falling = (0..classes.list.len()).filter(|class| shadow_prices.falls(*class, start));
            *mask = falling.fold(*mask, |mask, class| mask | 1 << class);
        }
        for (job, data) in instance.jobs.iter().enumerate() {
            let ends = [
                data.leaving().map(|assignment| (assignment, cost_table.delay[job])),
                data.current().map(|assignment| {
                    let item = &cost_table.items[cost_table.columns_of(job).start + assignment.config];
                    (assignment, cost_table.delay[job] + item.time)
                }),
            ];
            for (assignment, end) in ends.into_iter().flatten() {
                let start = periods.first_from(end);
                if start < starts {
                    let of = |node: &u32| 1 << classes.of_node[*node as usize];
                    news.classes[start] |=
                        assignment.nodes.as_slice().iter().fold(0, |mask: Mask, node| mask | of(node));
                }
            }
        }
        news
    }

    /// The first start from `from` on at which something happens to a class.
    fn first(&self, from: usize, class: usize) -> Option<usize> {
        (from..self.starts).find(|start| self.classes[*start] & 1 << class != 0)
    }

    /// When a change is made.
    fn change_start(&self, change: &DeferredStart) -> ChangeStart {
        let happens = self.first(1, change.class).unwrap_or(change.start);
        ChangeStart { charged: change.start as u8, expected: change.start.max(happens) as u8 }
    }
}
