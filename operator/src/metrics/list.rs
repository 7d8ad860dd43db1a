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
    UNFINISHED = gauge("andreas_unfinished_jobs", &["risk"],
        "TrainingJobs that have not ended, by the risk of missing their deadline: None without deadline, Late when it has passed");
    TARDINESS = gauge("andreas_unfinished_jobs_tardiness_seconds", &[],
        "Time past their deadlines of the TrainingJobs that have not ended, summed up");
    ENDED = counter("andreas_jobs_ended_total", &["phase", "deadline"],
        "TrainingJobs that ended, by how, and whether their deadline was met, missed or none");
    LATE = histogram("andreas_job_tardiness_seconds", &[],
        "Time past its deadline at which a TrainingJob succeeded; 0 where it was met");
    WAITED = histogram("andreas_job_wait_seconds", &[], "Time from a TrainingJob's creation to its first start");
    TURNAROUND = histogram("andreas_job_turnaround_seconds", &[],
        "Time from a TrainingJob's creation to its success");
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
        "Nodes with GPUs that are not planned, by reason: MigInUse, SharedGpus, NoWholeGpus, NoTypeLabel, UnknownBoard, TooManyGpus, TooManyTypes, NotSelected");
    UNKNOWN_BOARDS = gauge("andreas_unknown_board_nodes", &[],
        "Planned nodes of whose GPUs nobody knows what they draw, so that their energy is assumed; none where a power budget is set");
    WITHOUT_AGENT = gauge("andreas_nodes_without_agent", &[],
        "Planned nodes that are ready and have no node agent, or one that has been silent for three minutes while a pod held a GPU: their GPUs neither rest nor take power limits, and their energy is not measured");
    DRAW = gauge("andreas_power_watts", &[],
        "Draw of the cluster as budgets count it: jobs that start or run (measured where agents report), idle GPUs, nodes with a job, GPUs of others");
    BUDGETED = gauge("andreas_budgeted_power_watts", &[], "Budgeted power of the last plan");
    ALLOWED = gauge("andreas_allowed_power_watts", &[], "What the power budget allows; not there without budget");
    OVER_BUDGET = gauge("andreas_over_budget_watts", &[],
        "Draw of what runs above the power budget, measured where agents report; jobs that are asked to stop are left out");
    BUDGET_MET = gauge("andreas_budget_met", &[],
        "0 when what runs draws more than the power budget for longer than enforceWithin, measured where agents report");
    VIOLATIONS = counter("andreas_planned_budget_violations_total", &[], "Plans above the power budget");

    PLANS = counter("andreas_plans_total", &[], "Plans made");
    PLAN_ERRORS = counter("andreas_plan_errors_total", &[], "Snapshots that could not be planned");
    PLAN_TIME = histogram("andreas_plan_duration_seconds", &[], "Time to make a plan");
    PLAN_GAP = gauge("andreas_plan_gap_ratio", &[],
        "Proven gap of the last plan's step, as a part of its bound; not there where the method has no bound");
    PLAN_MISSED = gauge("andreas_plan_missed_saving_ratio", &[],
        "Part of what the last plan could save over letting everybody wait that its step may have missed; not there where the method has no bound");
    PLAN_ASKED = gauge("andreas_plan_asked_over_available_ratio", &[],
        "GPUs or watts that TrainingJobs ask for at the prices of the last plan over what is there, of the GPU type or watts of which most is asked for: about 1 where something is scarce, far more where prices are wrong; not there where the method has no prices");
    PLAN_BOUND_INVALID = counter("andreas_plan_bound_invalid_total", &[],
        "Plans whose bound was above their cost, so that nothing was proven; expected only while a lowered power budget stops jobs");
    PLAN_JOBS = gauge("andreas_plan_jobs", &[], "TrainingJobs in the last plan");
    PLAN_AT = gauge("andreas_last_plan_timestamp_seconds", &[], "When the last plan was made, seconds since 1970");
    DECISIONS = counter("andreas_decisions_total", &["decision"],
        "Decisions handed to TrainingJobs that differ from the one before: Run, or why it waits");
    PREDICTION_ERROR = histogram("andreas_prediction_error_ratio", &["source"],
        "How far the time of an epoch was from its prediction, as a part of it, for each attempt that was timed, by what it rested on");

    CHECKED = counter("andreas_predictions_checked_total", &["quantity", "gpu_type", "source"],
        "Predictions that an attempt showed the truth of: the time of an epoch, and the draw where agents metered it");
    MAPE = gauge("andreas_prediction_mape_ratio", &["quantity", "gpu_type", "source"],
        "Mean of how far the last 200 of these were off, as a part of the truth");
    COVERAGE = gauge("andreas_prediction_coverage_ratio", &["quantity", "gpu_type", "source"],
        "Share of the last 200 of these whose truth lay within their interval of 90 %");
    DEVIATIONS = counter("andreas_prediction_deviations_total", &[],
        "Times that a run deviated from its prediction, beyond the interval of 90 % or a fifth of its pace, and asked for another plan");
    FITS = counter("andreas_predictor_fits_total", &["result"],
        "Fits of the predictor: done, failed, or slow: longer than 5 s, while the previous model stays in use");
    FIT_TIME = histogram("andreas_predictor_fit_duration_seconds", &[], "Time to fit the predictor");
    FIT_AT = gauge("andreas_predictor_last_fit_timestamp_seconds", &[], "When the predictor was fitted last, seconds since 1970");
    FIT_ROWS = gauge("andreas_predictor_rows", &[], "Observations that the last fit read");
    FIT_REFUSED = gauge("andreas_predictor_refused_rows", &["reason"],
        "Observations that the last fit did not pool: what cannot be true, too many of one namespace, or Claimed: the program's word alone");
    FIT_REFUSED_OF = gauge("andreas_predictor_refused_namespace_rows", &["job_namespace"],
        "The same by namespace: the 20 with most of them, the rest together as _other");

    FORECAST_TIME = histogram("andreas_forecast_duration_seconds", &[], "Time to sample the futures of all TrainingJobs");
    FORECASTS_CHECKED = counter("andreas_forecasts_checked_total", &[],
        "TrainingJobs that succeeded and had a sampled forecast while they waited");
    FORECASTS_COVERED = counter("andreas_forecasts_covered_total", &[],
        "Of these, those whose end lay between the first forecast's 10 % and 90 % quantiles: 80 of 100 where it is right");
    FORECAST_BRIER = counter("andreas_forecast_brier_score_total", &[],
        "Sum of the Brier scores of these with a deadline: squared distance of the probability of being on time from 1 (met) or 0");
    FORECASTS_DUE = counter("andreas_forecasts_due_total", &[], "Of these, those with a deadline");
    QUERIES = counter("andreas_queries_total", &["question", "result"],
        "Questions to the query API: queue, explain, whatif, can, by what became of them: answered, denied, busy, invalid, failed");
    QUERY_TIME = histogram("andreas_query_duration_seconds", &[], "Time to compute an answer of the query API");

    RECONCILES = counter("andreas_reconciles_total", &[], "Reconciles of TrainingJobs");
    RECONCILE_ERRORS = counter("andreas_reconcile_errors_total", &[], "Reconciles that could not be carried out");
    QUEUE = gauge("andreas_reconcile_queue_jobs", &[], "TrainingJobs that wait for a reconcile");
    IN_FLIGHT = gauge("andreas_reconciles_in_flight", &[], "TrainingJobs that are being reconciled");
    WRITES = counter("andreas_api_writes_total", &["kind", "result"], "Writes to the API server, by kind and result");
    REPORTS = counter("andreas_progress_reports_total", &["result"],
        "Reports of progress, by what became of them: written, later, nothing, refused");
}
