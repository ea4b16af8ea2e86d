//! Addresses that the agent's own services listen on.

use wattpipe_pipeline::ConfigProblem;

/// A problem where `endpoint` is not `host:port`.
pub(crate) fn check(path: &str, endpoint: &str) -> Option<ConfigProblem> {
    let valid = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && !host.contains("://") && !host.contains('/')
    });
    (!valid).then(|| {
        ConfigProblem::at(
            path,
            format!("`{endpoint}` is no address to listen on: write `host:port`, such as 127.0.0.1:13133"),
        )
    })
}
