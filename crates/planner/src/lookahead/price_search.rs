//! Search for shadow prices, and whether they clear.
//!
//! In each round every job takes its cheapest configuration and start at the present prices. One that runs to its end
//! where it is takes nothing: what it holds is not for sale. Overused resources become more expensive, underused ones
//! cheaper. This is a subgradient method on the Lagrangian dual of the time-indexed problem. Each price has its own step,
//! which grows while its direction lasts and shrinks when it turns ([`Track`]). The result is the mean over the second half
//! of the rounds, because single rounds oscillate.
//!
//! **Prices must clear.** A job looks at all its columns in every round: if it looked only at a few, alike ones would fill
//! the list, and prices of what is not on it would run away. After the rounds the jobs are asked once more at the result.
//! Where far more of a resource is asked for than there is, or one that has a price is left, the search goes on.

use andreas_model::Seconds;

use super::Kept;
use super::choosers::Choosers;
use super::classes::Classes;
use super::cost_table::CostTable;
use super::periods::{PERIODS, Periods, Price, budget_by_period};
use super::track::{Track, Tracks};
use crate::instance::Instance;

/// Rounds without and with prices of the last decision.
const COLD: usize = 32;
const WARM: usize = 16;
/// Above this number of jobs a sample sets the prices; it has at least a sixteenth of all.
const SAMPLE: usize = 256;
/// Whether prices clear is seen in the periods that begin within this many first ones.
const SEEN: f64 = 4.0;
/// Prices clear where at most this part of what is there of each resource is asked for,
const MOST: f64 = 1.5;
/// and at least this part of each resource that has a price.
const LEAST: f64 = 0.5;
/// Where they do not, so many more searches follow; the last one begins without prices.
const MORE: usize = 3;

/// Result of a search.
pub(super) struct Searched {
    /// By class.
    pub gpu: Vec<Price>,
    /// With a budget.
    pub watt: Option<Price>,
    pub clearing: Clearing,
}

/// What jobs ask for at prices, as parts of what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clearing {
    /// Of the resource of which most is asked for; `None` if nothing is scarce.
    pub most: Option<f64>,
    /// Of the resource with a price of which least is asked for; infinite without one.
    least: f64,
}

impl Clearing {
    fn of(tracks: &Tracks, periods: &Periods) -> Self {
        let until = periods.first_from(SEEN * periods.unit());
        let (mut most, mut least) = (None, f64::INFINITY);
        for track in tracks.gpu.iter().chain(&tracks.watt) {
            let Some(asked) = track.used_part_until(periods, until) else { continue };
            most = Some(most.map_or(asked, |most| asked.max(most)));
            if track.has_price_until(until) {
                least = asked.min(least);
            }
        }
        Self { most, least }
    }

    /// How far these are beyond what is allowed; at most 1 where prices clear. Rough prices may leave more asked for than there is
    /// everywhere, but nothing that has a price.
    fn excess(&self, rough: bool) -> f64 {
        let most = if rough { 0.0 } else { self.most.unwrap_or(0.0) / MOST };
        most.max(LEAST / self.least)
    }
}

/// Finds prices, from those of the last decision if there are any; in a `part` of the rounds and with a part of the sample.
pub(super) fn search(
    instance: &Instance<'_>,
    (classes, cost_table): (&Classes, &CostTable),
    kept: &Kept,
    old: Option<(Vec<Price>, Price)>,
    part: usize,
) -> Searched {
    let rounds = if old.is_some() { WARM } else { COLD } / part;
    let mut search = Search::new(instance, (classes, cost_table), kept, part);
    if let Some((gpu, watt)) = old {
        search.tracks.gpu.iter_mut().zip(gpu).for_each(|(track, price)| track.price = price);
        if let Some(track) = &mut search.tracks.watt {
            track.price = watt;
        }
    }
    let excess = |searched: &Searched| searched.clearing.excess(part > 1);
    let mut best = search.run(rounds);
    for more in 1..=MORE {
        if excess(&best) <= 1.0 {
            break;
        }
        // At last without the prices that it came from.
        if more == MORE {
            search.tracks.all().for_each(Track::restart);
        }
        let other = search.run(if more == MORE { 2 * COLD } else { WARM } / part);
        if excess(&other) < excess(&best) {
            best = other;
        }
    }
    best
}

struct Search<'a, 'b> {
    choosers: Choosers<'a, 'b>,
    tracks: Tracks,
    periods: Periods,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        instance: &'a Instance<'b>,
        (classes, cost_table): (&Classes, &'a CostTable),
        kept: &Kept,
        part: usize,
    ) -> Self {
        let periods = cost_table.periods;
        let step = first_step(instance, cost_table);
        let track = |gpus: f64| Track::new(Price::default(), [gpus; PERIODS], step);
        let watts = watts(instance, &periods);
        let mut tracks = Tracks {
            gpu: classes.list.iter().map(|class| track(class.gpus)).collect(),
            watt: watts.map(|watts| Track::new(Price::default(), watts, watt_step(instance))),
        };
        take_what_is_kept(instance, (classes, cost_table), kept, &mut tracks);
        let choosers = Choosers::new(instance, cost_table, kept, SAMPLE / part);
        Self { choosers, tracks, periods }
    }

    /// The mean price of the second half of these rounds.
    fn run(&mut self, rounds: usize) -> Searched {
        let Self { choosers, tracks, periods } = self;
        let mut counted = 0.0;
        for round in 0..rounds {
            tracks.all().for_each(Track::clear_used);
            choosers.round(tracks);
            tracks.all().for_each(|track| track.update(periods));
            if round * 2 >= rounds {
                counted += 1.0;
                tracks.all().for_each(Track::count);
            }
        }
        // The rounds may go on from the last prices, which are nearer to the right ones where these are far away.
        let last: Vec<Price> = tracks.all().map(|track| track.price).collect();
        tracks.all().for_each(|track| {
            track.price = track.mean(periods, counted);
            track.clear_used();
        });
        choosers.round(tracks);
        let searched = Searched {
            gpu: tracks.gpu.iter().map(|track| track.price).collect(),
            watt: tracks.watt.as_ref().map(|track| track.price),
            clearing: Clearing::of(tracks, periods),
        };
        tracks.all().zip(last).for_each(|(track, price)| track.price = price);
        searched
    }
}

/// Takes the GPUs and watts of jobs that run to their end where they are: no price makes room of them.
fn take_what_is_kept(
    instance: &Instance<'_>,
    (classes, cost_table): (&Classes, &CostTable),
    kept: &Kept,
    tracks: &mut Tracks,
) {
    let periods = &cost_table.periods;
    for (job, (data, kept)) in instance.jobs.iter().zip(kept).enumerate() {
        let Some(kept) = kept else { continue };
        let item = &cost_table.items[cost_table.columns_of(job).start + kept.config];
        let until = cost_table.delay[job] + item.time;
        let end = periods.index_at(until);
        for node in kept.nodes.as_slice() {
            let gpus = data.configs[kept.config].gpus as f64;
            tracks.gpu[classes.of_node[*node as usize]].add(periods, gpus, 0, end, until);
        }
        if let Some(watt) = &mut tracks.watt {
            watt.add(periods, item.watts, 0, end, until);
        }
    }
    tracks.all().for_each(Track::take_used);
}

/// First step of GPU prices: cost of a second of waiting per GPU, and a part of its energy.
fn first_step(instance: &Instance<'_>, cost_table: &CostTable) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for (job, data) in instance.jobs.iter().enumerate() {
        let offered = || cost_table.items[cost_table.columns_of(job)].iter().filter(|i| i.possible());
        if let Some(item) = offered().min_by(|a, b| a.gpus.total_cmp(&b.gpus)) {
            let energy = instance.prices.energy_cost(item.billed, item.time.min(1e9)) / item.time.min(1e9);
            sum += (0.1 * energy + 0.3 * data.weight * data.share.max(0.05)) / item.gpus;
            count += 1.0;
        }
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

/// First step of watt prices: the cost of drawing one.
fn watt_step(instance: &Instance<'_>) -> f64 {
    (instance.prices.integral(3600.0) / 3600.0 * 0.1).max(1e-12)
}

/// Watts of the budget left for jobs in each period, on average.
fn watts(instance: &Instance<'_>, periods: &Periods) -> Option<[f64; PERIODS]> {
    let mean = |watts: f64, part: f64| watts * part;
    budget_by_period(instance, periods, Seconds::ZERO, mean, |sum, watts| sum + watts).map(|budget| {
        let mut left = [0.0; PERIODS];
        for (left, mean) in left.iter_mut().zip(budget) {
            *left = (mean - instance.floor_mw as f64 / 1e3).max(0.0);
        }
        left
    })
}
