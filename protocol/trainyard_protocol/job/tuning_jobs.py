"""Hyperparameter tuning jobs of Vertex AI: every field of `HyperparameterTuningJob` and of its studySpec.

Fields, types and numbers of enums: google/cloud/aiplatform/v1, hyperparameter_tuning_job.proto and study.proto. Rules
for values are those of `hyperparameters`, which a study has.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import model_validator

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Boolean, Double, Int32, Int64, Text, enum_of, validation_error
from trainyard_protocol.job.custom_jobs import CustomJobSpec, DisplayName, VertexJob, named, refused
from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    Goal,
    MeasurementSelection,
    ParentCategoricalValues,
    ParentDiscreteValues,
    ParentIntValues,
)
from trainyard_protocol.message import Many, Message

_ALGORITHMS = {0: Algorithm.ALGORITHM_UNSPECIFIED, 2: Algorithm.GRID_SEARCH, 3: Algorithm.RANDOM_SEARCH}
_NOISES = ("OBSERVATION_NOISE_UNSPECIFIED", "LOW", "HIGH")

_BY_STEP = "trials are compared by their steps, not by their time."
_ONLY_MEDIAN = "use medianAutomatedStoppingSpec, or submit a study with earlyStopping (docs/how-to/tuning.md)."
_COUNTS = "a study ends with maxTrialCount or maxFailedTrialCount; scheduling.timeout of the trialJobSpec ends a trial."


class VertexScaleType(StrEnum):
    SCALE_TYPE_UNSPECIFIED = "SCALE_TYPE_UNSPECIFIED"
    UNIT_LINEAR_SCALE = "UNIT_LINEAR_SCALE"
    UNIT_LOG_SCALE = "UNIT_LOG_SCALE"
    UNIT_REVERSE_LOG_SCALE = "UNIT_REVERSE_LOG_SCALE"


class DoubleValueSpec(Message):
    """Clients of REST leave a bound out that is 0. `default_value` is Vizier's alone, here as for Vertex AI."""

    min_value: Double = 0.0
    max_value: Double = 0.0
    default_value: Double | None = None


class IntegerValueSpec(Message):
    min_value: Int64 = 0
    max_value: Int64 = 0
    default_value: Int64 | None = None


class CategoricalValueSpec(Message):
    values: tuple[Text, ...] = ()
    default_value: Text = ""


class DiscreteValueSpec(Message):
    values: tuple[Double, ...] = ()
    default_value: Double | None = None


class ConditionalParameterSpec(Message):
    """A parameter that exists only where its parent has one of these values."""

    parameter_spec: "TunedParameter"
    parent_categorical_values: ParentCategoricalValues | None = None
    parent_discrete_values: ParentDiscreteValues | None = None
    parent_int_values: ParentIntValues | None = None


_KINDS = ("double_value_spec", "integer_value_spec", "categorical_value_spec", "discrete_value_spec")


class TunedParameter(Message):
    """`StudySpec.ParameterSpec`."""

    parameter_id: Text
    double_value_spec: DoubleValueSpec | None = None
    integer_value_spec: IntegerValueSpec | None = None
    categorical_value_spec: CategoricalValueSpec | None = None
    discrete_value_spec: DiscreteValueSpec | None = None
    scale_type: Annotated[VertexScaleType, enum_of(VertexScaleType), named(dict(enumerate(VertexScaleType)))] = (
        VertexScaleType.SCALE_TYPE_UNSPECIFIED
    )
    conditional_parameter_specs: Many[ConditionalParameterSpec] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(getattr(self, name) is not None for name in _KINDS) != 1:
            kinds = "doubleValueSpec, integerValueSpec, categoricalValueSpec and discreteValueSpec"
            raise validation_error(f"({quoted(self.parameter_id)}) needs one of {kinds}.")
        return self


class TunedMetric(Message):
    """`StudySpec.MetricSpec`."""

    metric_id: Text = ""
    goal: Annotated[Goal, enum_of(Goal), named(dict(enumerate(Goal)))] = Goal.GOAL_TYPE_UNSPECIFIED
    safety_config: Annotated[Any, refused("a study has one goal, and no safety thresholds.", empty=True)] = None


class MedianStopping(Message):
    """`StudySpec.MedianAutomatedStoppingSpec`."""

    use_elapsed_duration: Annotated[Boolean, refused(_BY_STEP)] = False


class TuningStudySpec(Message):
    """`StudySpec`. `observation_noise` is Vizier's alone, here as for Vertex AI."""

    metrics: Many[TunedMetric] = ()
    parameters: Many[TunedParameter] = ()
    algorithm: Annotated[Algorithm, enum_of(Algorithm), named(_ALGORITHMS)] = Algorithm.ALGORITHM_UNSPECIFIED
    observation_noise: Annotated[Text, named(dict(enumerate(_NOISES)))] = _NOISES[0]
    measurement_selection_type: Annotated[
        MeasurementSelection, enum_of(MeasurementSelection), named(dict(enumerate(MeasurementSelection)))
    ] = MeasurementSelection.MEASUREMENT_SELECTION_TYPE_UNSPECIFIED
    median_automated_stopping_spec: MedianStopping | None = None
    decay_curve_stopping_spec: Annotated[Any, refused(_ONLY_MEDIAN, empty=True)] = None
    convex_automated_stopping_spec: Annotated[Any, refused(_ONLY_MEDIAN, empty=True)] = None
    convex_stop_config: Annotated[Any, refused(_ONLY_MEDIAN, empty=True)] = None
    study_stopping_config: Annotated[Any, refused(_COUNTS)] = None
    transfer_learning_config: Annotated[Any, refused("a study learns from its own trials alone.")] = None


class HyperparameterTuningJob(VertexJob):
    study_spec: TuningStudySpec
    max_trial_count: Int32 = 0
    parallel_trial_count: Int32 = 0
    max_failed_trial_count: Int32 = 0
    trial_job_spec: CustomJobSpec


class GivenTuningJob(Message):
    """The tuning job that a training input was made from. `study_spec` and `trial_job_spec` are as they are returned;
    the server has checked them."""

    display_name: DisplayName
    study_spec: dict[str, Any]
    max_trial_count: Int32 = 0
    parallel_trial_count: Int32 = 0
    max_failed_trial_count: Int32 = 0
    trial_job_spec: dict[str, Any]
