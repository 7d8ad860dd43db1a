//! What the setter did and refused, and what follows for the next requests. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::agent::decide::Decision;
use crate::gpu::Facts;
use crate::setting::{Floor, Outcome, SettingsResponse, Uuid};

/// What the setter did and refused.
#[derive(Default)]
pub(super) struct SetterState {
    outcomes: BTreeMap<Uuid, Outcome>,
    /// The lowest values that the setter accepts; `None` before its first response.
    floor: Option<Floor>,
    /// GPUs on which the setter permanently refused a power limit of the operator.
    unlimitable: BTreeSet<Uuid>,
    /// GPUs on which it permanently refused to lock clocks. Before Volta they are listed and cannot be locked.
    unlockable: BTreeSet<Uuid>,
    /// The setter lacks permission and has set nothing since.
    denied: bool,
    /// GPUs that were reset and have lost their settings.
    renewed: BTreeSet<Uuid>,
    /// The last `spec.wakeGeneration` seen, and when it came; `None` for that: it is done, or was there at the start.
    wake_requested: Option<(i64, Option<Instant>)>,
}

impl SetterState {
    /// Takes over the response to a decision's settings.
    pub fn update(&mut self, decision: &Decision, response: SettingsResponse) {
        self.floor = Some(Floor { limit_mw: response.floor_limit_mw, clock_mhz: response.floor_clock_mhz });
        let sets = |outcome: &Outcome| outcome.setting.is_some_and(|setting| !setting.is_default());
        let denied = |outcome: &Outcome| outcome.refused.as_deref() == Some("no_permission");
        self.denied = response.gpus.values().any(denied) || self.denied && !response.gpus.values().any(sets);
        for (uuid, outcome) in &response.gpus {
            let wanted = decision.wanted.get(uuid).copied().unwrap_or_default();
            let refused = outcome.refused.as_deref();
            if wanted.clock_mhz.is_some() && matches!(refused, Some("not_supported" | "invalid_value")) {
                self.unlockable.insert(uuid.clone());
            }
            if wanted.limit_mw.is_none() {
                continue;
            }
            match refused {
                // The limit of a GPU that rests is ours: what it meets says nothing of the operator's.
                Some(reason) if is_final(reason) && !decision.resting.contains(uuid) => {
                    self.unlimitable.insert(uuid.clone());
                }
                None => {
                    self.unlimitable.remove(uuid);
                }
                Some(_) => {}
            }
        }
        self.outcomes = response.gpus;
    }

    /// No answer came to a decision's settings: they may have been made all the same.
    pub fn unanswered(&mut self, decision: &Decision) {
        for (uuid, wanted) in &decision.wanted {
            let outcome = self.outcomes.entry(uuid.clone()).or_default();
            outcome.setting = outcome.setting.filter(|setting| setting == wanted);
        }
    }

    /// A GPU was reset or its driver loaded again: its settings are gone, and what was refused may be possible now.
    pub fn renew(&mut self, uuid: &Uuid) {
        self.unlimitable.remove(uuid);
        self.unlockable.remove(uuid);
        self.renewed.insert(uuid.clone());
    }

    /// The last response for a GPU.
    pub fn outcome(&self, uuid: &str) -> Option<&Outcome> {
        self.outcomes.get(uuid)
    }

    /// Reasons of the last response's refusals.
    pub fn refusals(&self) -> impl Iterator<Item = &str> {
        self.outcomes.values().filter_map(|outcome| outcome.refused.as_deref())
    }

    /// Whether the setter permanently refused a power limit of the operator on a GPU.
    pub fn is_unlimitable(&self, uuid: &str) -> bool {
        self.unlimitable.contains(uuid)
    }

    /// The lowest power limit that the setter accepts, mW; `None` before its first response, and while it lacks permission.
    pub fn settable_floor(&self) -> Option<u32> {
        self.floor.map(|floor| floor.limit_mw).filter(|_| !self.denied)
    }

    /// GPUs that were reset since the last call and have lost their settings.
    pub fn take_renewed(&mut self) -> BTreeSet<Uuid> {
        std::mem::take(&mut self.renewed)
    }

    /// The operator requests this `spec.wakeGeneration`, and the GPUs are `awake` for it. Returns once how long that took. The request that
    /// this process begins with is not timed.
    pub fn time_wake(&mut self, wake: i64, awake: bool) -> Option<Duration> {
        match &mut self.wake_requested {
            Some((seen, since)) if *seen == wake => since.take_if(|_| awake).map(|since| since.elapsed()),
            seen => {
                *seen = Some((wake, seen.is_some().then(Instant::now)));
                None
            }
        }
    }

    /// A GPU's facts with the ranges that the setter accepts: from the administrator's floor on, limits up to the GPU's ceiling, none while
    /// that is not known, and no clocks where they cannot be locked. A floor above the highest value leaves nothing.
    pub fn settable(&self, uuid: &str, facts: Facts) -> Facts {
        let floor = self.floor.unwrap_or_default();
        let from = |range: Option<(u32, u32)>, floor: u32| {
            range.map(|(lowest, highest)| (lowest.max(floor), highest)).filter(|(from, to)| from <= to)
        };
        let ceiling = self.outcome(uuid).and_then(|outcome| outcome.ceiling_mw);
        let limits = facts.limit_mw.zip(ceiling).map(|((lowest, highest), to)| (lowest, highest.min(to)));
        let clocks = facts.clock_mhz.filter(|_| !self.unlockable.contains(uuid));
        let (limit_mw, clock_mhz) = (from(limits, floor.limit_mw), from(clocks, floor.clock_mhz));
        Facts { limit_mw, clock_mhz, ..facts }
    }
}

/// Whether the setter will refuse every retry too: [`GpuError::is_final`](crate::gpu::GpuError::is_final), or a value outside the
/// range. Other refusals pass with the fault that is behind them.
pub(super) fn is_final(refusal: &str) -> bool {
    matches!(refusal, "not_supported" | "no_permission" | "invalid_value" | "out_of_range")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuError;
    use crate::setting::Setting;

    const GPU: &str = "GPU-a";

    fn decision(setting: Setting, resting: bool) -> Decision {
        let resting = resting.then(|| GPU.to_owned()).into_iter().collect();
        Decision { wanted: BTreeMap::from([(GPU.to_owned(), setting)]), resting, carries_out: None }
    }

    fn response(refused: Option<&str>) -> SettingsResponse {
        let setting = Some(Setting::default());
        let outcome = Outcome { setting, ceiling_mw: Some(300_000), refused: refused.map(str::to_owned) };
        let gpus = BTreeMap::from([(GPU.to_owned(), outcome)]);
        SettingsResponse {
            floor_limit_mw: 150_000,
            floor_clock_mhz: 600,
            gpus,
            ..SettingsResponse::default()
        }
    }

    const LIMIT: Setting = Setting { limit_mw: Some(250_000), clock_mhz: None };
    const CLOCK: Setting = Setting { limit_mw: None, clock_mhz: Some(210) };

    #[test]
    fn a_refusal_is_final_where_the_driver_or_the_floor_says_so_and_passes_with_a_fault_otherwise() {
        for error in [
            GpuError::Hung,
            GpuError::Lost,
            GpuError::ResetRequired,
            GpuError::NoPermission,
            GpuError::NotSupported,
            GpuError::InvalidValue,
            GpuError::NotFound,
            GpuError::NoDriver(String::new()),
            GpuError::Unreachable(String::new()),
            GpuError::Other(String::new()),
        ] {
            assert_eq!(is_final(error.reason()), error.is_final(), "{error:?}");
            let mut state = SetterState::default();
            state.update(&decision(LIMIT, false), response(Some(error.reason())));
            assert_eq!(state.unlimitable.contains(GPU), error.is_final(), "{error:?}");
        }
        assert!(is_final("out_of_range") && !is_final("record"));
    }

    #[test]
    fn what_was_set_is_unknown_after_a_request_without_an_answer_until_the_next_one_is_answered() {
        let setting = |state: &SetterState| state.outcomes.get(GPU).and_then(|outcome| outcome.setting);
        let mut state = SetterState::default();
        state.update(&Decision::default(), response(None));
        assert_eq!(setting(&state), Some(Setting::default()));
        state.unanswered(&Decision::default());
        assert_eq!(setting(&state), Some(Setting::default()), "nothing else was wanted");
        state.unanswered(&decision(CLOCK, true));
        assert_eq!(setting(&state), None);
        // A wake comes: nothing is wanted any more, and that is not answered either.
        state.unanswered(&Decision::default());
        assert_eq!(setting(&state), None);
        state.update(&Decision::default(), response(None));
        assert_eq!(setting(&state), Some(Setting::default()));
        let mut new = SetterState::default();
        new.unanswered(&decision(CLOCK, true));
        assert!(new.outcomes.contains_key(GPU) && setting(&new).is_none(), "a GPU never asked for before");
    }

    #[test]
    fn a_gpu_takes_limits_again_after_a_reset_or_once_one_was_set() {
        let mut state = SetterState::default();
        state.update(&decision(LIMIT, false), response(Some("not_supported")));
        state.update(&decision(CLOCK, true), response(None));
        assert!(state.unlimitable.contains(GPU), "locked clocks say nothing of limits");
        state.update(&decision(LIMIT, true), response(None));
        assert!(state.unlimitable.is_empty());
        state.update(&decision(LIMIT, false), response(Some("invalid_value")));
        state.update(&decision(CLOCK, true), response(Some("not_supported")));
        assert!(state.unlimitable.contains(GPU) && state.unlockable.contains(GPU));
        state.renew(&GPU.to_owned());
        assert!(state.unlimitable.is_empty() && state.unlockable.is_empty() && state.renewed.contains(GPU));
    }

    #[test]
    fn a_wake_is_timed_once_and_the_one_that_was_there_at_the_start_is_not() {
        let mut state = SetterState::default();
        let timed = [(1, false), (1, true), (2, false), (2, true), (2, true), (3, true), (3, true)]
            .map(|(wake, awake)| state.time_wake(wake, awake).is_some());
        assert_eq!(timed, [false, false, false, true, false, false, true]);
    }

    #[test]
    fn a_refused_rest_takes_no_limit_away_from_the_operator() {
        let mut state = SetterState::default();
        state.update(&decision(LIMIT, true), response(Some("out_of_range")));
        assert!(state.unlimitable.is_empty());
        for (refusal, unlockable) in [("out_of_range", false), ("gpu_lost", false), ("invalid_value", true)] {
            state.update(&decision(CLOCK, true), response(Some(refusal)));
            assert_eq!(state.unlockable.contains(GPU), unlockable, "{refusal}");
        }
    }

    #[test]
    fn ranges_go_from_the_administrators_floor_to_the_ceiling_and_may_be_empty() {
        let facts = |limit_mw, clock_mhz| Facts { limit_mw, clock_mhz, ..Facts::default() };
        let board = facts(Some((100_000, 400_000)), Some((210, 1410)));
        let mut state = SetterState::default();
        let unknown = state.settable(GPU, board.clone());
        assert_eq!(unknown, facts(None, Some((210, 1410))), "neither floor nor ceiling are known yet");
        state.update(&Decision::default(), response(None));
        let raised = facts(Some((150_000, 300_000)), Some((600, 1410)));
        assert_eq!(state.settable(GPU, board.clone()), raised);
        let low = facts(Some((40_000, 70_000)), Some((210, 590)));
        assert_eq!(state.settable(GPU, low), facts(None, None));
        state.unlockable.insert(GPU.to_owned());
        assert_eq!(state.settable(GPU, board).clock_mhz, None);
    }
}
