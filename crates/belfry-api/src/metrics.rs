//! The recorder behind `/metrics`. Installed once by the process, kept tidy by whoever spawns its futures.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};

/// How often old samples are folded up, so that histograms do not grow between two visits of the collector.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
const SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Makes this the process's recorder; everything recorded before is lost, a second call is refused.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new().set_buckets(SECONDS)?.install_recorder()
}

/// Runs for ever; the caller spawns it.
pub async fn upkeep(handle: PrometheusHandle) {
    let mut every = tokio::time::interval(UPKEEP_EVERY);
    loop {
        every.tick().await;
        handle.run_upkeep();
    }
}
