//! A window as OTLP: one `ResourceMetrics` per workload that has news, and one for the host's
//! zones.

use std::sync::Arc;

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
        metric::Data, number_data_point::Value as Number,
    },
    resource::v1::Resource,
};
use wattpipe_pipeline::{
    BuildContext,
    batch::UsageBatch,
    identity::{AttributeSet, Value},
};

use super::config::Temporality;
use crate::{
    semconv::{self, ACTIVE, IDLE, Level},
    series::{Entity, SeriesConfig, SeriesState, ZoneSeries},
};

/// What is encoded, and how.
#[derive(Clone, Debug)]
pub struct EncoderOptions {
    /// `cumulative` or `delta`.
    pub temporality: Temporality,
    /// Levels that have series.
    pub levels: Vec<Level>,
    /// Workloads per level.
    pub max_series: usize,
    /// Copy resource attributes onto the points.
    pub resource_to_telemetry_conversion: bool,
}

/// Keeps the series of one exporter and encodes what is new in each window.
#[derive(Debug)]
pub struct Encoder {
    series: SeriesState,
    context: Points,
}

/// What all points have in common.
#[derive(Debug)]
struct Points {
    temporality: Temporality,
    convert: bool,
    /// Static resource attributes, `service.name` among them.
    resource: Arc<AttributeSet>,
    scope: InstrumentationScope,
    time: u64,
}

impl Encoder {
    /// For the exporter that `context` is for.
    pub fn new(options: &EncoderOptions, context: &BuildContext) -> Self {
        let mut resource = (*context.resource).clone();
        if resource.get(semconv::SERVICE_NAME).is_none() {
            resource.set(semconv::SERVICE_NAME, semconv::SCOPE);
        }
        Self {
            series: SeriesState::new(SeriesConfig {
                levels: options.levels.clone(),
                max_series: options.max_series,
                linger_ns: 0,
            }),
            context: Points {
                temporality: options.temporality,
                convert: options.resource_to_telemetry_conversion,
                resource: Arc::new(resource),
                scope: InstrumentationScope {
                    name: semconv::SCOPE.to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                },
                time: 0,
            },
        }
    }

    /// Adds a window and gives what is new, with its number of points.
    pub fn encode(&mut self, batch: &UsageBatch, mut give: impl FnMut(ResourceMetrics, u64)) {
        let Self { series, context } = self;
        series.update(batch);
        context.time = series.now();
        context.scope.attributes = semconv::power_model_name(batch)
            .map(|name| pair(semconv::POWER_MODEL_NAME, text(name)))
            .into_iter()
            .collect();
        let zones = series.zones().to_vec();
        if let Some((metrics, points)) = context.host(&zones) {
            give(metrics, points);
        }
        let delta = context.temporality == Temporality::Delta;
        series.for_each_due(delta, |entity| {
            let (metrics, points) = context.workload(entity, &zones);
            give(metrics, points);
        });
        if delta {
            series.reset_zones();
        }
    }
}

impl Points {
    fn host(&self, zones: &[ZoneSeries]) -> Option<(ResourceMetrics, u64)> {
        let fresh: Vec<&ZoneSeries> = zones.iter().filter(|z| z.fresh).collect();
        if fresh.is_empty() {
            return None;
        }
        let base = if self.convert { attributes(&self.resource) } else { Vec::new() };
        let of = |zone: &ZoneSeries, id: &str, value: f64| {
            let mut labels = base.clone();
            labels.push(pair(id, text(&zone.zone.name)));
            labels.push(pair(semconv::HW_TYPE, text(&zone.zone.hw_type)));
            if zone.is_estimate() {
                labels.push(pair(semconv::ENERGY_SOURCE, text("estimate")));
            }
            self.point(zone.start, Number::AsDouble(value), labels)
        };
        let energy = fresh.iter().map(|z| of(z, semconv::HW_ID, z.joules)).collect();
        let unknown = fresh.iter().map(|z| of(z, semconv::ENERGY_ZONE, z.unattributed)).collect();
        let metrics =
            vec![self.sum(&semconv::HW_ENERGY, energy), self.sum(&semconv::UNATTRIBUTED, unknown)];
        Some((self.resource_metrics(attributes(&self.resource), metrics), 2 * fresh.len() as u64))
    }

    fn workload(&self, entity: &Entity, zones: &[ZoneSeries]) -> (ResourceMetrics, u64) {
        let resource = self.resource_of(&entity.attributes);
        let base = if self.convert { resource.clone() } else { Vec::new() };
        let point = |value, labels| self.point(entity.start, value, labels);
        let level = entity.level.index();
        let cpu = Number::AsDouble(entity.cpu.as_secs_f64());
        let mut metrics = vec![self.sum(&semconv::CPU_TIME[level], vec![point(cpu, base.clone())])];
        if let (Level::Process, Some(switches)) = (entity.level, entity.switches) {
            let switches = i64::try_from(switches).unwrap_or(i64::MAX);
            let point = point(Number::AsInt(switches), base.clone());
            metrics.push(self.sum(&semconv::CONTEXT_SWITCHES, vec![point]));
        }
        let mut energy = Vec::new();
        for part in &entity.energy {
            let Some(zone) = zones.get(part.zone) else { continue };
            for (mode, joules) in [(ACTIVE, part.active), (IDLE, part.idle)] {
                // Idle energy is there only where it is shared out.
                if mode == IDLE && joules == 0.0 {
                    continue;
                }
                let mut labels = base.clone();
                labels.push(pair(semconv::ENERGY_ZONE, text(&zone.zone.name)));
                labels.push(pair(semconv::HW_TYPE, text(&zone.zone.hw_type)));
                labels.push(pair(semconv::ENERGY_MODE, text(mode)));
                if zone.is_estimate() {
                    labels.push(pair(semconv::ENERGY_SOURCE, text("estimate")));
                }
                energy.push(point(Number::AsDouble(joules), labels));
            }
        }
        let points = metrics.len() + energy.len();
        if !energy.is_empty() {
            metrics.push(self.sum(&semconv::ENERGY[level], energy));
        }
        (self.resource_metrics(resource, metrics), points as u64)
    }

    /// Static attributes and the workload's own, which go before them.
    fn resource_of(&self, own: &AttributeSet) -> Vec<KeyValue> {
        let statics = self.resource.iter().filter(|(key, _)| own.get(key).is_none());
        statics
            .chain(own.iter())
            .map(|(k, v)| match k {
                semconv::OVERFLOW => {
                    pair(k, AnyValue { value: Some(any_value::Value::BoolValue(true)) })
                }
                _ => pair(k, any(v)),
            })
            .collect()
    }

    fn resource_metrics(&self, resource: Vec<KeyValue>, metrics: Vec<Metric>) -> ResourceMetrics {
        ResourceMetrics {
            resource: Some(Resource { attributes: resource, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(self.scope.clone()),
                metrics,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }
    }

    fn sum(&self, metric: &semconv::Metric, points: Vec<NumberDataPoint>) -> Metric {
        let temporality = match self.temporality {
            Temporality::Cumulative => AggregationTemporality::Cumulative,
            Temporality::Delta => AggregationTemporality::Delta,
        };
        Metric {
            name: metric.name.to_owned(),
            description: metric.description.to_owned(),
            unit: metric.unit.to_owned(),
            data: Some(Data::Sum(Sum {
                data_points: points,
                aggregation_temporality: temporality as i32,
                is_monotonic: true,
            })),
            ..Metric::default()
        }
    }

    fn point(&self, start: u64, value: Number, labels: Vec<KeyValue>) -> NumberDataPoint {
        NumberDataPoint {
            attributes: labels,
            start_time_unix_nano: start.min(self.time),
            time_unix_nano: self.time,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    }
}

fn attributes(set: &AttributeSet) -> Vec<KeyValue> {
    set.iter().map(|(k, v)| pair(k, any(v))).collect()
}

fn pair(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn text(value: &str) -> AnyValue {
    AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) }
}

fn any(value: &Value) -> AnyValue {
    match value {
        Value::Str(s) => text(s),
        Value::Int(i) => AnyValue { value: Some(any_value::Value::IntValue(*i)) },
    }
}
