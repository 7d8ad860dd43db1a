//! The power budget of an instant and what is drawn against it.

use andreas_api::energy_policy::PowerBudgetScope;
use andreas_api::{EnergyPolicySpec, Phase};
use jiff::Timestamp;
use serde::Serialize;

use super::windows::{self, Window};
use crate::inventory::{NodeView, Objects};

/// The budget now, and what is drawn against it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// There is an EnergyPolicy; else its defaults are shown.
    pub policy: bool,
    /// The budget now, W; none where power is not limited.
    pub watts: Option<i64>,
    /// When it changes next.
    pub changes: Option<Timestamp>,
    /// The budget then, W; none where power is not limited then.
    pub then_watts: Option<i64>,
    /// `IT`, or `Facility`: then all powers here are those of the IT times the PUE.
    pub scope: &'static str,
    /// Part that plans leave free, percent.
    pub margin_percent: i32,
    /// Power usage effectiveness.
    pub pue: f64,
    /// Time zone of the windows.
    pub time_zone: String,
    /// The windows.
    pub windows: Vec<BudgetWindow>,
    /// Draw in the scope, W.
    pub drawn_watts: i64,
    /// The part of GPUs, W of IT.
    pub gpu_watts: i64,
    /// The part of machines beside their GPUs, W of IT.
    pub machine_watts: i64,
    /// Nodes whose machine is not measured and counts by the policy or the table.
    pub estimated_machines: u64,
    /// Nodes of which no agent reports: their draw is missing.
    pub unreported: u64,
    /// Nodes that count: those that are planned.
    pub nodes: u64,
    /// What starting and running jobs are planned to draw, W of IT; none where jobs may not be listed.
    pub planned_watts: Option<i64>,
    /// What the operator says of it: condition `BudgetMet`.
    pub met: Option<bool>,
    /// That in a sentence.
    pub message: Option<String>,
    /// Price of a kWh now, PUE included.
    pub price_per_kwh: f64,
    /// Currency of prices.
    pub currency: String,
}

/// A window of the budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetWindow {
    /// Start, `HH:MM`.
    pub from: String,
    /// End, `HH:MM`, exclusive.
    pub to: String,
    /// Budget, W.
    pub watts: i64,
    /// It is the one that counts now.
    pub now: bool,
}

impl Budget {
    /// Of objects at an instant.
    pub fn of(objects: &Objects, views: &[NodeView], now: Timestamp) -> Self {
        let policy = objects.policy();
        let budget = &policy.power_budget;
        let zone = windows::zone(&budget.time_zone);
        let all: Vec<Window<Option<i64>>> =
            budget.windows.iter().filter_map(|w| Window::new(&w.from, &w.to, Some(w.watts))).collect();
        let clock = zone.to_datetime(now).time();
        let covers = |w: &andreas_api::energy_policy::BudgetWindow| {
            Window::new(&w.from, &w.to, ()).is_some_and(|window| window.covers(clock))
        };
        let counting = budget.windows.iter().position(covers);
        let change = windows::next(&all, budget.watts, &zone, now);
        let counted: Vec<&NodeView> = views.iter().filter(|view| view.excluded.is_none()).collect();
        let gpu_watts: i64 = counted.iter().map(|view| view.gpu_watts).sum();
        let machine_watts: i64 = counted.iter().filter_map(|view| view.host_watts).sum();
        let pue = policy.pue.value_or(1.0).max(1.0);
        let facility = budget.scope == PowerBudgetScope::Facility;
        let factor = if facility { pue } else { 1.0 };
        let conditions = objects.policy.as_ref().and_then(|policy| policy.status.as_ref());
        let met = conditions.and_then(|status| status.conditions.iter().find(|one| one.type_ == "BudgetMet"));
        Self {
            policy: objects.policy.is_some(),
            watts: windows::at(&all, budget.watts, &zone, now),
            changes: change.map(|(at, _)| at),
            then_watts: change.and_then(|(_, watts)| watts),
            scope: if facility { "Facility" } else { "IT" },
            margin_percent: budget.margin_percent,
            pue,
            time_zone: budget.time_zone.clone(),
            windows: budget
                .windows
                .iter()
                .enumerate()
                .map(|(number, window)| BudgetWindow {
                    from: window.from.clone(),
                    to: window.to.clone(),
                    watts: window.watts,
                    now: counting == Some(number),
                })
                .collect(),
            drawn_watts: ((gpu_watts + machine_watts) as f64 * factor).round() as i64,
            gpu_watts,
            machine_watts,
            estimated_machines: number(&counted, |view| view.host_watts.is_some() && !view.host_measured),
            unreported: number(&counted, |view| view.devices.is_empty()),
            nodes: counted.len() as u64,
            planned_watts: planned(objects),
            met: met.map(|met| met.status == "True"),
            message: met.map(|met| met.message.clone()),
            price_per_kwh: price(&policy, pue, now),
            currency: policy.currency.clone(),
        }
    }
}

fn number(views: &[&NodeView], which: impl Fn(&NodeView) -> bool) -> u64 {
    views.iter().filter(|view| which(view)).count() as u64
}

fn planned(objects: &Objects) -> Option<i64> {
    let jobs = objects.jobs.as_ref()?.iter();
    let statuses = jobs.filter_map(|job| job.status.as_ref());
    let busy = statuses.filter(|status| matches!(status.phase, Phase::Starting | Phase::Running));
    Some(busy.filter_map(|status| Some(i64::from(status.allocation.as_ref()?.watts))).sum())
}

/// Price of a kWh at an instant, PUE included.
fn price(policy: &EnergyPolicySpec, pue: f64, now: Timestamp) -> f64 {
    let tariff = &policy.prices.tariff;
    let window = |w: &andreas_api::energy_policy::TariffWindow| {
        Window::new(&w.from, &w.to, w.energy_per_kwh.value_or(0.0))
    };
    let all: Vec<Window<f64>> = tariff.windows.iter().filter_map(window).collect();
    let base = policy.prices.energy_per_kwh.value_or(0.0);
    windows::at(&all, base, &windows::zone(&tariff.time_zone), now) * pue
}
