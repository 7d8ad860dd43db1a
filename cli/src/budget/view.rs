//! The power budget of an instant and what is drawn against it.

use andreas_api::Phase;
use andreas_api::energy_policy::PowerBudgetScope;
use andreas_core::{Time, Watts};
use andreas_policy::rules;
use andreas_policy::windows::Window;
use jiff::Timestamp;
use serde::Serialize;

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
    /// Nodes without an agent's report: their draw is missing.
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
    /// The budget at an instant, from the objects of the cluster.
    pub fn new(objects: &Objects, views: &[NodeView], now: Timestamp) -> Self {
        let policy = objects.policy();
        let budget = &policy.power_budget;
        let zone = rules::zone(&budget.time_zone);
        let covers = |w: &andreas_api::energy_policy::BudgetWindow| {
            Window::new(&w.from, &w.to, ()).is_some_and(|window| window.covers(&zone, now))
        };
        let counting = budget.windows.iter().position(covers);
        let limit = rules::budget(&policy, now.as_second()).map(|limit| limit.watts);
        let watts_at = |at: Time| {
            let watts: Option<Watts> = limit.as_ref()?.at(at);
            watts.filter(|watts| rules::limits(*watts)).map(|watts| watts.0.round() as i64)
        };
        let present = Time(now.as_second() as f64);
        let change = limit.as_ref().and_then(|limit| limit.next_edge(present));
        let counted: Vec<&NodeView> = views.iter().filter(|view| view.excluded.is_none()).collect();
        let gpu_watts: i64 = counted.iter().map(|view| view.gpu_watts).sum();
        let machine_watts: i64 = counted.iter().filter_map(|view| view.host_watts).sum();
        let pue = rules::pue(&policy);
        let facility = budget.scope == PowerBudgetScope::Facility;
        let factor = if facility { pue } else { 1.0 };
        let conditions = objects.policy.as_ref().and_then(|policy| policy.status.as_ref());
        let met = conditions.and_then(|status| status.conditions.iter().find(|one| one.type_ == "BudgetMet"));
        Self {
            policy: objects.policy.is_some(),
            watts: watts_at(present),
            changes: change.and_then(|at| Timestamp::from_second(at.0 as i64).ok()),
            then_watts: change.and_then(watts_at),
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
            unreported: number(&counted, |view| view.devices.is_empty()),
            nodes: counted.len() as u64,
            planned_watts: planned(objects),
            met: met.map(|met| met.status == "True"),
            message: met.map(|met| met.message.clone()),
            price_per_kwh: rules::price_at(&policy, now.as_second()).0 * 3.6e6,
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
