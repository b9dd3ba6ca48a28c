"""Pointwise ops, fills and random numbers: one kernel that goes through the elements once."""

from __future__ import annotations

from dataclasses import replace

from neusight.ops.operands import (
    copy_kernel,
    fill_kernel,
    gpu_tensors,
    is_in_place,
    kernel_name,
    memcpy_d2h,
    memory_kernel,
    op_names,
    output,
    pointwise_kernel,
    read_tensors,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Pointwise ops: those tagged so in torch 2.13, and those that are so by their CUDA kernel.
#: In-place forms are found by the name without the underscore.
POINTWISE: tuple[str, ...] = op_names(
    """
    __ilshift__ __irshift__ __lshift__ __rshift__ _add_relu _conj_physical _dirichlet_grad
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _prelu_kernel
    _prelu_kernel_backward _standard_gamma_grad abs acos acosh add addcdiv addcmul addr angle
    asin asinh atan atan2 atanh binary_cross_entropy_backward bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min
    complex conj_physical copysign cos cosh deg2rad dequantize digamma div elu elu_backward eq
    erf erfc erfinv exp exp2 expm1 fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask floor floor_divide
    fmax fmin fmod frac frexp gcd ge gelu gelu_backward glu glu_backward glu_backward_jvp
    glu_jvp gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward heaviside huber_loss_backward hypot i0 igamma
    igammac int_repr isfinite isinf isnan isneginf isposinf lcm ldexp le leaky_relu
    leaky_relu_backward lerp lgamma linalg_cross log log10 log1p log2 log_sigmoid_backward
    log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit logit_backward lt maximum minimum mish mish_backward mse_loss_backward mul mvlgamma
    nan_to_num ne neg nextafter polar polygamma quantize_per_channel quantize_per_tensor
    rad2deg reciprocal relu relu6 remainder round rrelu_with_noise rrelu_with_noise_backward
    rrelu_with_noise_functional rsqrt rsub sgn sigmoid sigmoid_backward sign signbit silu
    silu_backward sin sinc sinh smooth_l1_loss_backward soft_margin_loss_backward softplus
    softplus_backward softshrink softshrink_backward special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he
    special_i0e special_i1 special_i1e special_laguerre_polynomial_l
    special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0
    special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
    special_spherical_bessel_j0 special_xlog1py special_zeta sqrt square sub tan tanh
    tanh_backward threshold threshold_backward tril triu trunc where xlogy
    """
)

#: Ops that write a value into new or existing memory and read at most a scalar.
#: On CUDA zero_ is fill_(0), a kernel and no memset (ATen/native/Fill.cpp).
FILLS: tuple[str, ...] = op_names(
    """
    _efficientzerotensor _new_zeros_with_same_feature_meta arange bartlett_window
    blackman_window fft_fftfreq fft_rfftfreq fill full full_like hamming_window hann_window
    kaiser_window linspace logspace new_full new_ones new_zeros ones ones_like range
    scalar_tensor tril_indices triu_indices zero zeros zeros_like
    """
)

#: Random numbers written without reading the target.
RANDOM: tuple[str, ...] = op_names(
    """
    _philox_normal _philox_uniform cauchy exponential geometric log_normal normal
    normal_functional rand rand_like randint randint_like randn randn_like random uniform
    """
)

#: Of them those of a normal distribution.
_NORMAL = ("randn", "normal")

#: Random numbers drawn with parameters read from a tensor.
_SAMPLES = (
    "_fill_mem_eff_dropout_mask",
    "_sample_dirichlet",
    "_standard_gamma",
    "bernoulli",
    "binomial",
    "poisson",
)


def _label(call: OpSignature) -> str:
    """The name shown: "dropout" for native_dropout, "add" for add_."""
    return kernel_name(call).removeprefix("native_").removeprefix("special_")


#: Exponents that pow's kernel turns into products and roots (PowKernel.cu): as cheap as a product.
_CHEAP_EXPONENTS = (0.5, 2.0, 3.0, -0.5, -1.0, -2.0)


@register_op("aten::pow")
def power(call: OpSignature, *, exponent: Argument = None) -> list[Kernel]:
    """One kernel; with a small whole exponent that of a product or root."""
    is_cheap = isinstance(exponent, (int, float)) and exponent in _CHEAP_EXPONENTS
    name = "pow_by_products" if is_cheap else "pow"
    return pointwise_kernel(name, read_tensors(call), written_tensors(call))


@register_op(*(f"aten::{name}" for name in POINTWISE), "aten::native_dropout_backward")
def pointwise(call: OpSignature) -> list[Kernel]:
    """One kernel over the broadcast shape."""
    return pointwise_kernel(_label(call), read_tensors(call), written_tensors(call))


@register_op(*(f"aten::{name}" for name in FILLS))
def fill(call: OpSignature) -> list[Kernel]:
    """One kernel that only writes (a value tensor is a scalar)."""
    name = _label(call)
    label = {"arange": "arange", "linspace": "linspace", "logspace": "logspace"}.get(name, "fill")
    return pointwise_kernel(label, (), written_tensors(call))


@register_op("aten::eye")
def eye(call: OpSignature) -> list[Kernel]:
    """Zeros, then ones on the diagonal."""
    target = output(call)
    side = min(target.shape) if target.shape else 0
    diagonal = TensorSpec((side,), (1,), target.dtype, target.device)
    return fill_kernel(target) + fill_kernel(diagonal)


@register_op(*(f"aten::{name}" for name in RANDOM))
def random(call: OpSignature, *, mean: Argument = None, std: Argument = None) -> list[Kernel]:
    """One kernel of a random number generator."""
    label = _label(call).removesuffix("_like").removesuffix("_functional")
    # normal(mean: Tensor, std) draws standard normals first, then scales and shifts in place.
    means = gpu_tensors((mean, std))
    targets = written_tensors(call)
    kernels = pointwise_kernel(label, (), targets)
    if label in _NORMAL:
        kernels = [replace(kernel, variant="normal_numbers") for kernel in kernels]
    for mean in means:
        kernels += pointwise_kernel("normal_transform", (*targets, mean), targets)
    return kernels


@register_op(*(f"aten::{name}" for name in _SAMPLES))
def sample(call: OpSignature, math: MathMode, *, p: Argument = None) -> list[Kernel]:
    """One kernel that draws with given probabilities; in place only `p` is read, if a tensor."""
    reads = gpu_tensors((p,)) if is_in_place(call) else read_tensors(call)
    return pointwise_kernel(_label(call), reads, written_tensors(call))


@register_op("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: OpSignature, *, train: bool | None = None) -> list[Kernel]:
    """One kernel: reads the input, writes the output and a byte of mask an element."""
    if train is False:
        return []
    kernels = pointwise_kernel("dropout", read_tensors(call), written_tensors(call))
    return [replace(kernel, variant="dropout") for kernel in kernels]


@register_op("aten::_masked_scale")
def masked_scale(call: OpSignature) -> list[Kernel]:
    """The backward of a fused dropout."""
    return pointwise_kernel("dropout_backward", read_tensors(call), written_tensors(call))


@register_op("aten::masked_fill")
def masked_fill(
    call: OpSignature, *, self: TensorSpec, mask: TensorSpec, **others: Argument
) -> list[Kernel]:
    """The in-place kernel, after a copy for the out-of-place form."""
    target = output(call)
    copies = [] if is_in_place(call) else copy_kernel(self, target)
    if not target.numel:
        return []
    # The kernel loads the old value too: it is a binary loop over (self, mask).
    return copies + pointwise_kernel("masked_fill", (target, mask), (target,))


def mean_of(spec: TensorSpec, result: TensorSpec, name: str) -> Kernel:
    """The kernel that reduces a whole tensor to one number."""
    return memory_kernel(
        KernelClass.REDUCTION, name, reads=(spec,), writes=(result,), rows=1, width=spec.numel
    )


_REDUCTION_NAME = {1: "mean", 2: "sum"}  # at::Reduction


@register_op("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss")
def pointwise_loss(
    call: OpSignature, *, self: TensorSpec, target: TensorSpec, reduction: int = 1
) -> list[Kernel]:
    """A pointwise kernel into a temporary, then the reduction."""
    return _reduced_loss(call, self, target, reduction, [kernel_name(call)])


@register_op("aten::binary_cross_entropy")
def binary_cross_entropy(
    call: OpSignature,
    *,
    self: TensorSpec,
    target: TensorSpec,
    weight: TensorSpec | None = None,
    reduction: int = 1,
) -> list[Kernel]:
    """A pointwise kernel, the weight if any, then the reduction."""
    steps = ["binary_cross_entropy", *(["mul"] if weight else [])]
    return _reduced_loss(call, self, target, reduction, steps)


@register_op("aten::soft_margin_loss")
def soft_margin_loss(
    call: OpSignature, *, self: TensorSpec, target: TensorSpec, reduction: int = 1
) -> list[Kernel]:
    """log1p(exp(-input * target)) in four kernels (ATen/native/Loss.cpp), then the reduction."""
    return _reduced_loss(call, self, target, reduction, ["neg", "mul", "exp", "log1p"])


@register_op("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    call: OpSignature,
    *,
    self: TensorSpec,
    target: TensorSpec,
    weight: TensorSpec | None = None,
    pos_weight: TensorSpec | None = None,
    reduction: int = 1,
) -> list[Kernel]:
    """(1 - target) * input - log_sigmoid(input) op by op (Loss.cpp), then the reduction."""
    steps = ["rsub", "mul", "log_sigmoid", "sub"]
    steps += ["mul", "add", "mul"] if pos_weight else []
    steps += ["mul"] if weight else []
    kernels = _reduced_loss(call, self, target, reduction, steps)
    if pos_weight:
        kernels = pointwise_kernel("sub", (pos_weight,), (pos_weight,)) + kernels
    return kernels


#: Pointwise steps of the losses above that read two tensors; the others read one.
_BINARY_STEPS = frozenset(
    ("binary_cross_entropy", "huber_loss", "mse_loss", "mul", "smooth_l1_loss", "sub")
)


def _reduced_loss(
    call: OpSignature, source: TensorSpec, target: TensorSpec, reduction: int, steps: list[str]
) -> list[Kernel]:
    terms = max(source, target, key=lambda spec: spec.numel)
    kernels: list[Kernel] = []
    for step in steps:
        operands = (source, target) if step in _BINARY_STEPS else (source,)
        kernels += pointwise_kernel(step, operands, (terms,))
    if reduction in _REDUCTION_NAME:
        kernels.append(mean_of(terms, output(call), _REDUCTION_NAME[reduction]))
    return kernels


@register_op("aten::isin")
def isin(call: OpSignature) -> list[Kernel]:
    """A kernel that compares each element with all test elements (few) or by sorting (many)."""
    return pointwise_kernel("isin", read_tensors(call), written_tensors(call))


@register_op("aten::_amp_update_scale")
def amp_update_scale(
    call: OpSignature, *, self: TensorSpec, growth_tracker: TensorSpec, found_inf: TensorSpec
) -> list[Kernel]:
    """One tiny kernel that grows or shrinks the loss scale."""
    scale = (self, growth_tracker)
    return pointwise_kernel("amp_update_scale", (*scale, found_inf), scale)


@register_op("aten::_assert_async", "aten::_functional_assert_async")
def assert_async(call: OpSignature) -> list[Kernel]:
    """One tiny kernel that traps on false."""
    reads = read_tensors(call)
    return [memory_kernel(KernelClass.ELEMENTWISE, "assert_async", reads=reads)]


@register_op("aten::allclose")
def allclose(call: OpSignature, *, self: TensorSpec, other: TensorSpec) -> list[Kernel]:
    """isclose in about eight kernels, all(), and the answer read by the host."""
    mask = TensorSpec(self.shape, self.stride, "bool", self.device)
    answer = TensorSpec((), (), "bool", self.device)
    steps = ["eq", "abs", "mul", "add", "sub", "abs", "isfinite", "le", "bitwise_and", "bitwise_or"]
    kernels = [k for step in steps for k in pointwise_kernel(step, (self,), (mask,))]
    return [*kernels, mean_of(mask, answer, "all"), memcpy_d2h(answer)]


@register_op("aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index(
    call: OpSignature, *, indices: tuple[TensorSpec, ...], **others: Argument
) -> list[Kernel]:
    """Clamped indices, a gather or scatter, and a masked fill."""
    target = output(call)
    kernels = [k for index in indices for k in pointwise_kernel("clamp", (index,), (index,))]
    kernels += pointwise_kernel("index", read_tensors(call), (target,))
    return kernels + pointwise_kernel("masked_fill", (target,), (target,))


@register_op("aten::_compute_linear_combination")
def compute_linear_combination(call: OpSignature) -> list[Kernel]:
    """Fill, then one kernel."""
    reads, target = read_tensors(call), output(call)
    return fill_kernel(target) + pointwise_kernel("linear_combination", reads, (target,))
