//! Order of departures and starts: which start waits until which jobs have left.
//!
//! What a job holds stays held until its pods have ended. A start takes what is free beside all that, and the rest
//! of what leaving jobs will release. Each amount is given away once, and a start waits for every job whose release
//! it takes. So whichever of them have left at an instant, what is held and started by then fits: the GPUs and other
//! resources of each node, the quotas, and the power budget. Where more is held than there is, as after a lower
//! budget, the first releases pay for that, and every start waits for them.
//!
//! **Each plan computes the order anew**, also of a job that an earlier plan has promised its place and that holds
//! nothing there yet ([`JobData::is_promised`]). A promise is withdrawn if a job in its way stays, or should have left
//! long ago.

use std::collections::{BTreeMap, BTreeSet};

use andreas_model::JobId;

use crate::capacity::{Capacity, Obstacle, Part, parts};
use crate::explain::BLOCKERS;
use crate::instance::{Assignment, Instance};
use crate::plan::{Decision, WaitReason};
use crate::snapshot::{JobState, LimitsCount};

/// How much of a decision can be carried out now.
pub(crate) enum Execution<'a> {
    /// All of it, once these jobs have left.
    Now {
        /// Indices of the jobs, in order.
        after: BTreeSet<usize>,
    },
    /// The job stays as it is: a higher limit waits for watts that others have not released yet.
    Stay(&'a Assignment),
    /// The job does not start.
    Wait(Decision),
}

/// An amount that is released when these jobs have left.
struct Release {
    jobs: Vec<usize>,
    amount: i128,
}

/// What starts can take of a part of the capacity.
struct Supply {
    /// Free beside everything held; negative if more is held than there is.
    free: i128,
    releases: Vec<Release>,
    /// Jobs whose releases made up for a negative `free`: every start waits for them.
    overdrawn_until: BTreeSet<usize>,
}

impl Supply {
    /// Lets the first releases make up for what is held too much.
    fn settle(&mut self) {
        for release in &mut self.releases {
            if self.free >= 0 {
                break;
            }
            let amount = release.amount.min(-self.free);
            release.amount -= amount;
            self.free += amount;
            self.overdrawn_until.extend(&release.jobs);
        }
    }

    fn total(&self) -> i128 {
        self.free + self.releases.iter().map(|release| release.amount).sum::<i128>()
    }

    /// What needs no job to leave but this one.
    fn available_to(&self, job: usize) -> i128 {
        let releases = self.releases.iter().filter(|release| release.jobs == [job]);
        self.free + releases.map(|release| release.amount).sum::<i128>()
    }

    /// Gives this amount to a job that waits for `after`, first of what it waits for anyway.
    fn take(&mut self, mut needed: i128, job: usize, after: &mut BTreeSet<usize>) {
        after.extend(&self.overdrawn_until);
        let mut draw = |amount: &mut i128| {
            let taken = needed.min(*amount).max(0);
            *amount -= taken;
            needed -= taken;
            taken > 0
        };
        for release in &mut self.releases {
            if release.jobs.iter().all(|other| *other == job || after.contains(other)) {
                draw(&mut release.amount);
            }
        }
        draw(&mut self.free);
        for release in &mut self.releases {
            if draw(&mut release.amount) {
                after.extend(&release.jobs);
            }
        }
    }
}

/// The order of one plan.
pub(crate) struct Order<'a, 'b> {
    instance: &'a Instance<'b>,
    assignments: &'a [Option<Assignment>],
    /// Everything that is held or drawn now.
    held: Capacity,
    /// The same when all have left and started; computed once.
    end: Option<Capacity>,
    /// Jobs that leave their place and are expected to be gone, the first to be gone first.
    leaving: Vec<usize>,
    supplies: BTreeMap<Part, Supply>,
    /// Idle nodes where a job starts at once.
    occupied: BTreeSet<u32>,
}

impl<'a, 'b> Order<'a, 'b> {
    pub fn new(instance: &'a Instance<'b>, assignments: &'a [Option<Assignment>]) -> Self {
        let (held, leaving) = (Capacity::empty(instance), Vec::new());
        let (supplies, occupied) = (BTreeMap::new(), BTreeSet::new());
        let mut order = Self { instance, assignments, held, end: None, leaving, supplies, occupied };
        for (job, data) in instance.jobs.iter().enumerate() {
            let Some(held) = data.held() else { continue };
            let lower = |goes: &&Assignment| order.draw_mw(job, goes) < order.draw_mw(job, held);
            let at_once = data.job.limits_count == LimitsCount::AtOnce && order.leaves(job).is_none();
            let place = assignments[job].as_ref().filter(|goes| at_once && lower(goes)).unwrap_or(held);
            order.held.take(instance, job, place);
            order.held.draw_more(data.unset_mw());
        }
        order.leaving = (0..assignments.len())
            .filter(|job| order.leaves(*job).is_some() && !instance.jobs[*job].is_overdue(instance.now))
            .collect();
        let gone = |job: &usize| match instance.jobs[*job].job.state {
            JobState::Stopping { gone_by, .. } => gone_by.0,
            _ => f64::INFINITY,
        };
        order.leaving.sort_by(|a, b| gone(a).total_cmp(&gone(b)).then(a.cmp(b)));
        order.add_releases();
        order
    }

    /// What every decision to run comes to now, by job.
    pub fn executions(mut self) -> Vec<Option<Execution<'a>>> {
        let assignments = self.assignments;
        let mut executions: Vec<Option<Execution<'a>>> = Vec::with_capacity(assignments.len());
        let mut starts = Vec::new();
        for (job, assignment) in assignments.iter().enumerate() {
            let Some(assignment) = assignment else {
                executions.push(None);
                continue;
            };
            let data = &self.instance.jobs[job];
            executions.push(match data.held().filter(|_| self.leaves(job).is_none()) {
                Some(held) => Some(self.of_staying(job, held, assignment)),
                None => {
                    starts.push((!data.is_promised(), job, assignment));
                    None
                }
            });
        }
        // Earlier promises first; whoever can start beside everything held does so before watts are given to others.
        starts.sort_by_key(|(new, job, _)| (*new, *job));
        starts.retain(|(_, job, assignment)| {
            let needs = self.needs(*job, assignment);
            let starts = self.fits_at_once(*job, &needs);
            if starts {
                executions[*job] = Some(self.start(*job, assignment, &needs));
            }
            !starts
        });
        for (_, job, assignment) in starts {
            let needs = self.needs(job, assignment);
            executions[job] =
                Some(match needs.iter().find(|(part, needed)| self.supply(*part).total() < *needed) {
                    None => self.start(job, assignment, &needs),
                    Some((part, _)) => self.without_supply(job, *part),
                });
        }
        executions
    }

    /// The place that a job gives up: for other nodes, other GPUs or to wait. A stopping job gives up its place even if
    /// it comes back.
    fn leaves(&self, job: usize) -> Option<&'a Assignment> {
        let data = &self.instance.jobs[job];
        let goes = self.assignments[job].as_ref().filter(|_| data.leaving().is_none());
        data.held().filter(|held| !goes.is_some_and(|goes| data.same_gpus(goes, held)))
    }

    fn add_releases(&mut self) {
        let instance = self.instance;
        let mut workers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for job in self.leaving.clone() {
            let Some(place) = self.leaves(job) else { continue };
            let mut releases = parts(instance, job, place);
            releases.push((Part::Power, releases_mw(instance, job, place)));
            for (part, amount) in releases {
                let supply = self.supply(part);
                // A job that draws less than its idle GPUs costs watts when it has left.
                supply.free += amount.min(0);
                supply.releases.push(Release { jobs: vec![job], amount: amount.max(0) });
            }
            for node in place.nodes.as_slice() {
                workers.entry(*node).or_default().push(job);
            }
        }
        let wanted: BTreeSet<u32> =
            self.assignments.iter().flatten().flat_map(|place| place.nodes.as_slice()).copied().collect();
        for (node, jobs) in workers {
            if self.held.workers_on(node) == jobs.len() && !wanted.contains(&node) {
                let amount = instance.nodes[node as usize].overhead_mw;
                self.supply(Part::Power).releases.push(Release { jobs, amount });
            }
        }
        self.supplies.values_mut().for_each(Supply::settle);
    }

    fn supply(&mut self, part: Part) -> &mut Supply {
        let free = || self.held.free(self.instance, part);
        self.supplies.entry(part).or_insert_with(|| Supply {
            free: free(),
            releases: Vec::new(),
            overdrawn_until: BTreeSet::new(),
        })
    }

    /// What a start takes.
    fn needs(&self, job: usize, assignment: &Assignment) -> Vec<(Part, i128)> {
        let mut needs = parts(self.instance, job, assignment);
        let idle = |node: &&u32| !self.held.busy(**node) && !self.occupied.contains(*node);
        let idle_nodes = assignment.nodes.as_slice().iter().filter(idle);
        let overheads: i128 = idle_nodes.map(|node| self.instance.nodes[*node as usize].overhead_mw).sum();
        needs.push((Part::Power, self.instance.own_mw(job, assignment) + overheads));
        needs.retain(|(_, needed)| *needed > 0);
        needs
    }

    fn fits_at_once(&mut self, job: usize, needs: &[(Part, i128)]) -> bool {
        let releases_some = self.instance.jobs[job].held().is_some();
        needs.iter().all(|(part, needed)| {
            let supply = self.supply(*part);
            let fits =
                |needed: i128| supply.free >= needed || releases_some && supply.available_to(job) >= needed;
            supply.overdrawn_until.is_empty() && fits(*needed)
        })
    }

    fn start(&mut self, job: usize, assignment: &Assignment, needs: &[(Part, i128)]) -> Execution<'a> {
        let mut after = BTreeSet::new();
        for (part, needed) in needs {
            self.supply(*part).take(*needed, job, &mut after);
        }
        after.remove(&job);
        if after.is_empty() {
            self.occupied.extend(assignment.nodes.as_slice());
        }
        Execution::Now { after }
    }

    /// A start that the releases do not cover waits for all of them if it fits then: hosts that become idle are released
    /// by nobody alone.
    fn without_supply(&mut self, job: usize, part: Part) -> Execution<'a> {
        let instance = self.instance;
        if self.end.is_none() {
            self.end = Some(self.when_all_have_left());
        }
        // A moving job gives back what it holds first, which takes longer than setting a limit.
        let moves = matches!(instance.jobs[job].job.state, JobState::Running { .. });
        if moves || self.end.as_ref().is_some_and(|end| end.free(instance, part) >= 0) {
            let after = self.leaving.iter().copied().filter(|leaving| *leaving != job).collect();
            return Execution::Now { after };
        }
        Execution::Wait(self.wait(job, part))
    }

    fn when_all_have_left(&self) -> Capacity {
        let mut end = self.held.clone();
        for leaving in &self.leaving {
            self.leaves(*leaving).into_iter().for_each(|place| end.release(self.instance, *leaving, place));
        }
        for (job, assignment) in self.assignments.iter().enumerate() {
            let starts = self.instance.jobs[job].held().is_none() || self.leaves(job).is_some();
            assignment.iter().filter(|_| starts).for_each(|place| end.take(self.instance, job, place));
        }
        end
    }

    /// A job that keeps its GPUs, at any power limit.
    fn of_staying(&mut self, job: usize, held: &'a Assignment, assignment: &Assignment) -> Execution<'a> {
        let data = &self.instance.jobs[job];
        let more = self.draw_mw(job, assignment) - self.draw_mw(job, held);
        if more > 0 {
            if !self.fits_at_once(job, &[(Part::Power, more)]) {
                return Execution::Stay(held);
            }
            self.supply(Part::Power).take(more, job, &mut BTreeSet::new());
        }
        let mut after = BTreeSet::new();
        if let JobState::Starting { .. } = data.job.state {
            for (part, _) in self.needs(job, held) {
                let supply = self.supply(part);
                after.extend(&supply.overdrawn_until);
                if supply.free < 0 {
                    after.extend(self.holders(job, part));
                }
            }
        }
        Execution::Now { after }
    }

    /// Other jobs that hold something of a part, and do not start themselves.
    fn holders(&self, job: usize, part: Part) -> Vec<usize> {
        let instance = self.instance;
        let holds = |other: &usize| {
            let data = &instance.jobs[*other];
            let place = data.held().filter(|_| !matches!(data.job.state, JobState::Starting { .. }));
            place.is_some_and(|place| {
                part == Part::Power || parts(instance, *other, place).iter().any(|(held, _)| *held == part)
            })
        };
        (0..instance.jobs.len()).filter(|other| *other != job).filter(holds).collect()
    }

    /// The wait decision of a start for which something is missing, with the jobs in its way.
    fn wait(&self, job: usize, part: Part) -> Decision {
        let pending = || (0..self.assignments.len()).filter(|job| self.has_pending_lower_limit(*job));
        let stays = |other: &usize| !self.leaving.contains(other);
        let (reason, blockers, message): (_, Vec<usize>, _) = match part.obstacle() {
            Obstacle::Power if pending().next().is_some() => (
                WaitReason::PowerBudget,
                pending().collect(),
                "it starts once lower power limits of others are in force",
            ),
            obstacle => {
                let reason = match obstacle {
                    Obstacle::Power => WaitReason::PowerBudget,
                    Obstacle::Quota => WaitReason::QuotaExceeded,
                    Obstacle::Nodes => WaitReason::WaitingForCapacity,
                };
                let holders = self.holders(job, part).into_iter().filter(stays).collect();
                (reason, holders, "others that were to leave still hold what it needs")
            }
        };
        let named = blockers.into_iter().take(BLOCKERS).map(|job| self.id(job)).collect();
        Decision::Wait { reason, blockers: named, message: message.to_owned() }
    }

    /// Whether a lower limit of a held placement is decided but not in force yet.
    fn has_pending_lower_limit(&self, job: usize) -> bool {
        let data = &self.instance.jobs[job];
        let lowered = || {
            let places =
                data.held().zip(self.assignments[job].as_ref()).filter(|_| self.leaves(job).is_none());
            places.is_some_and(|(held, goes)| self.draw_mw(job, goes) < self.draw_mw(job, held))
        };
        data.job.limits_count != LimitsCount::AtOnce && (data.unset_mw() > 0 || lowered())
    }

    fn draw_mw(&self, job: usize, assignment: &Assignment) -> i128 {
        self.instance.jobs[job].configs[assignment.config].draw_mw()
    }

    fn id(&self, job: usize) -> JobId {
        self.instance.jobs[job].job.id.clone()
    }
}

/// Watts that a leaving job gives back, without the overhead of its nodes.
fn releases_mw(instance: &Instance<'_>, job: usize, place: &Assignment) -> i128 {
    instance.own_mw(job, place) + instance.jobs[job].unset_mw()
}
