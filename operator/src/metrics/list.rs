//! Every metric of the operator.

use andreas_runtime::certificates::CERTIFICATES;
use andreas_runtime::metrics::{Metric, PROCESS};
use andreas_runtime::watch::WATCHES;

/// All metrics on `/metrics`, including those common to all programs.
#[must_use]
pub fn all() -> Vec<Metric> {
    [OWN, WATCHES, CERTIFICATES, PROCESS].concat()
}

andreas_runtime::metrics! {
    /// The operator's own.
    const OWN;

    LEADER = gauge("andreas_leader", &[], "1 while this replica leads; a replica that does not shows counters alone");

    JOBS = gauge("andreas_jobs", &["phase", "reason"], "TrainingJobs that exist, by phase and its reason");
    OLDEST_WAITING = gauge("andreas_oldest_waiting_job_seconds", &[],
        "For how long the TrainingJob that has waited longest since it was made or last stopped has waited; 0 when none waits");
    HELD_BACK = gauge("andreas_jobs_held_back", &[],
        "TrainingJobs that run under a power limit which slows them, because the power budget has no room for what they would draw");
    UNFINISHED = gauge("andreas_unfinished_jobs", &["risk"],
        "TrainingJobs that have not ended, by the risk of missing their deadline: None without deadline, Late when it has passed");
    ENDED = counter("andreas_jobs_ended_total", &["phase", "deadline"],
        "TrainingJobs that ended, by how, and whether their deadline was met, missed or none");
    WAITED = histogram("andreas_job_wait_seconds", &[], "Time from a TrainingJob's creation to its first start");
    ATTEMPTS = counter("andreas_attempts_ended_total", &["outcome", "reason"],
        "Attempts that ended, by outcome and reason");
    RESTARTS = counter("andreas_restarts_total", &[],
        "Times that a TrainingJob that trained was stopped by the operator to go on later or elsewhere");

    ENERGY = counter("andreas_job_energy_joules_total", &["job_namespace", "gpu_type"],
        "Energy of the GPUs of TrainingJobs while this replica led, as their status accounts for it");
    HOST_ENERGY = counter("andreas_job_host_energy_joules_total", &["job_namespace", "gpu_type"],
        "Their share of their nodes' energy besides the GPUs, as their status accounts for it");
    ENERGY_COST = counter("andreas_job_energy_cost_total", &["job_namespace", "gpu_type"],
        "Price of both energies, PUE included, in the policy's currency");
    LATENESS_COST = counter("andreas_job_lateness_cost_total", &["job_namespace"],
        "Price of the lateness and turnaround of TrainingJobs that ended, in the policy's currency");

    POLICY = gauge("andreas_policy_info", &["currency"],
        "1; the currency of all prices: the policy's label, joined to what is in money");

    GPUS = gauge("andreas_gpus", &["gpu_type", "state"],
        "GPUs of managed nodes, by type and state: held (by TrainingJobs), foreign, free, resting, unhealthy, unavailable");
    USABLE_NODES = gauge("andreas_usable_nodes", &[],
        "Nodes whose GPUs are planned and that take workers now: ready, not cordoned");
    EXCLUDED_NODES = gauge("andreas_excluded_nodes", &["reason"],
        "Nodes with GPUs that are not planned, by reason: MigInUse, SharedGpus, MixedBoards, NoWholeGpus, NoTypeLabel, UnknownBoard, TooManyGpus, TooManyTypes, NotSelected");
    WITHOUT_AGENT = gauge("andreas_nodes_without_agent", &[],
        "Planned nodes that are ready and have no node agent, or one that has been silent for three minutes while a pod held a GPU: their GPUs neither rest nor take power limits, and their energy is not measured");
    DRAW = gauge("andreas_power_watts", &[],
        "Draw of the cluster as budgets count it: jobs that start or run (measured where agents report), idle GPUs, nodes with a job, GPUs of others");
    SAVED = counter("andreas_node_saved_joules_total", &[],
        "Energy that machines saved while they were off, less what their starts cost; with nodeSleep.mode Observe, would have saved");
    BUDGETED = gauge("andreas_budgeted_power_watts", &[], "Budgeted power of the last plan");
    ALLOWED = gauge("andreas_allowed_power_watts", &[], "What the power budget allows; not there without budget");
    BUDGET_MET = gauge("andreas_budget_met", &[],
        "0 when what runs draws more than the power budget for longer than enforceWithin, measured where agents report");
    VIOLATIONS = counter("andreas_planned_budget_violations_total", &[], "Plans above the power budget");

    PLAN_ERRORS = counter("andreas_plan_errors_total", &[], "Snapshots that could not be planned");
    PLAN_TIME = histogram("andreas_plan_duration_seconds", &[], "Time to make a plan");
    PLAN_ASKED = gauge("andreas_plan_asked_over_available_ratio", &[],
        "GPUs or watts that TrainingJobs ask for at the prices of the last plan over what is there, of the GPU type or watts of which most is asked for: about 1 where something is scarce, far more where prices are wrong; not there where the method has no prices");
    PLAN_LEFT_FREE = gauge("andreas_plan_gpus_left_free", &[],
        "Free GPUs of nodes on which a TrainingJob could start now that the last plan lets wait, though neither tariff nor power budget gets better: a part of a node, or for some minutes, is usual");
    PLAN_AT = gauge("andreas_last_plan_timestamp_seconds", &[], "When the last plan was made, seconds since 1970");
    PREDICTION_ERROR = histogram("andreas_prediction_error_ratio", &["source"],
        "How far the time of an epoch was from its prediction, as a part of it, for each attempt that was timed, by what it rested on");

    MAPE = gauge("andreas_prediction_mape_ratio", &["quantity", "gpu_type", "source"],
        "Mean of how far the last 200 predictions of the time of an epoch, or of the draw where agents metered it, were off, as a part of the truth");
    COVERAGE = gauge("andreas_prediction_coverage_ratio", &["quantity", "gpu_type", "source"],
        "Share of the last 200 of these whose truth lay within their interval of 90 %");
    DEVIATIONS = counter("andreas_prediction_deviations_total", &[],
        "Times that a run deviated from its prediction, beyond the interval of 90 % or a fifth of its pace, and asked for another plan");
    FIT_REFUSED_OF = gauge("andreas_predictor_refused_namespace_rows", &["job_namespace"],
        "Observations that the last fit did not pool, by namespace, because they cannot be true, are too many or rest on the program's word alone: the 20 namespaces with most of them, the rest together as _other");

    FORECASTS_CHECKED = counter("andreas_forecasts_checked_total", &["covered"],
        "TrainingJobs that succeeded and had a sampled forecast while they waited, by whether their end lay between its 10 % and 90 % quantiles: 80 of 100 where it is right");
    QUERIES = counter("andreas_queries_total", &["question", "result"],
        "Questions to the query API: queue, explain, whatif, can, by what became of them: answered, denied, busy, invalid, failed");

    RECONCILES = counter("andreas_reconciles_total", &[], "Reconciles of TrainingJobs");
    RECONCILE_ERRORS = counter("andreas_reconcile_errors_total", &[], "Reconciles that could not be carried out");
    WRITES = counter("andreas_api_writes_total", &["kind", "result"], "Writes to the API server, by kind and result");
    REPORTS = counter("andreas_progress_reports_total", &["result"],
        "Reports of progress, by what became of them: written, later, nothing, refused");
}
