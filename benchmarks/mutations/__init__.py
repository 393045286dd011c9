"""Ways to break a result in one place, as a wrong rewrite would.

`tests/cases/mutations.py` changes models to meet guards; these mutations change the computed function.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from mutations import attributes, folds, reach, weights, wiring
from mutations.place import WHERE, Edit, Known, Place, broken, know, places

Kind = Callable[[Place, Random], Edit | None]  # None where a place has nothing that could be broken so

KINDS: Final[tuple[Kind, ...]] = (
    *(folds.epsilon_of_fold_left_out, folds.epsilon_of_fold_too_large, folds.sign_of_mean),
    *(folds.shift_of_fold_left_out, folds.variance_not_rooted),
    *(weights.bias_dropped, weights.bias_of_one_channel_zero, weights.one_channel_scaled, weights.channels_rolled),
    *(weights.two_channels_swapped, weights.one_weight_changed, weights.factor_off, weights.exponent_changed),
    *(weights.clip_bound_changed, weights.index_off_by_one, weights.quantization_scale_off),
    *(weights.zero_point_off_by_one, weights.trip_count_off_by_one, weights.neighbour_constant),
    *(attributes.transpose_changed, attributes.axis_off_by_one, attributes.pads_shifted, attributes.dilated),
    *(attributes.stride_changed, attributes.padding_counted, attributes.pad_value_changed),
    *(attributes.gemm_factor_changed, attributes.transposition_flipped, attributes.keepdims_flipped),
    *(attributes.other_gelu, attributes.epsilon_too_large, attributes.quantization_axis_changed),
    *(attributes.decision_turned, attributes.mode_changed, attributes.parameter_changed, attributes.branches_swapped),
    *(attributes.switch_flipped, attributes.word_changed, attributes.groups_changed, wiring.optional_dropped),
    *(wiring.activation_dropped, wiring.term_dropped, wiring.transpose_dropped, wiring.operands_swapped),
    *(wiring.other_operator, wiring.comparison_includes, wiring.mask_turned),
    *(wiring.reshape_dims_swapped, wiring.cast_left_out, wiring.narrowed, wiring.outputs_swapped),
    *(wiring.output_taken_twice, wiring.wrong_value_read),
    *(reach.wrong_beyond_size, reach.trips_limited, reach.buckets_limited, reach.row_of_table_changed),
    *(reach.heads_swapped, reach.causal_mask_shifted),
)


def name(kind: Kind) -> str:
    return kind.__name__.replace("_", " ")


__all__ = ["KINDS", "WHERE", "Edit", "Kind", "Known", "Place", "broken", "know", "name", "places"]
