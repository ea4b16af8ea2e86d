//! `ResourceMetrics` packed into requests by encoded bytes, and a request taken apart again where
//! a receiver finds it too large.

use bytes::Bytes;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest, metrics::v1::ResourceMetrics,
};
use prost::{Message, encoding};

use crate::queue::Request;

/// Field number of `resource_metrics` in `ExportMetricsServiceRequest`. A request is nothing but
/// this field repeated, so requests can be cut and joined between any two resources.
const RESOURCE_METRICS: u32 = 1;

/// Packs one window.
#[derive(Debug)]
pub struct Requests {
    window: u64,
    max_size: usize,
    max_points: u64,
    done: Vec<Request>,
    body: Vec<u8>,
    points: u64,
}

impl Requests {
    /// Of this window, each with at most so many bytes and points.
    pub fn new(window: u64, max_size: usize, max_points: u64) -> Self {
        Self { window, max_size, max_points, done: Vec::new(), body: Vec::new(), points: 0 }
    }

    /// Adds a resource with its points. One that is too large by itself travels alone.
    pub fn push(&mut self, metrics: &ResourceMetrics, points: u64) {
        let size = encoding::message::encoded_len(RESOURCE_METRICS, metrics);
        if self.body.len() + size > self.max_size || self.points + points > self.max_points {
            self.cut();
        }
        encoding::message::encode(RESOURCE_METRICS, metrics, &mut self.body);
        self.points += points;
    }

    /// The requests.
    pub fn finish(mut self) -> Vec<Request> {
        self.cut();
        self.done
    }

    fn cut(&mut self) {
        if !self.body.is_empty() {
            self.done.push(Request {
                body: std::mem::take(&mut self.body).into(),
                points: std::mem::take(&mut self.points),
                window: self.window,
            });
        }
    }
}

/// Two halves of a request by bytes; `None` where it holds a single resource.
pub(super) fn split(request: &Request) -> Option<[Request; 2]> {
    let whole = ExportMetricsServiceRequest::decode(request.body.clone()).ok()?;
    if whole.resource_metrics.len() < 2 {
        return None;
    }
    let half = request.body.len() / 2;
    let mut first = Vec::new();
    let mut points = 0;
    for (i, metrics) in whole.resource_metrics.iter().enumerate() {
        let last = i + 1 == whole.resource_metrics.len();
        let size = encoding::message::encoded_len(RESOURCE_METRICS, metrics);
        if last || (i > 0 && first.len() + size > half) {
            break;
        }
        encoding::message::encode(RESOURCE_METRICS, metrics, &mut first);
        points += points_of(metrics);
    }
    let rest = request.body.slice(first.len()..);
    let window = request.window;
    Some([
        Request { body: Bytes::from(first), points, window },
        Request { body: rest, points: request.points.saturating_sub(points), window },
    ])
}

fn points_of(metrics: &ResourceMetrics) -> u64 {
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    let metrics = metrics.scope_metrics.iter().flat_map(|s| &s.metrics);
    metrics
        .map(|m| match &m.data {
            Some(Data::Sum(sum)) => sum.data_points.len() as u64,
            _ => 0,
        })
        .sum()
}
