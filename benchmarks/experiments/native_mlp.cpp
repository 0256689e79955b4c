// Ensembles of MLPs as one autograd node: members (and, where there are fewer of them than threads, parts of the batch) are spread
// over threads, each with single-threaded matrix products; bias, ReLU and its mask are applied while a tile is in cache.
// An experiment, see native_mlp.py: it is not part of the package.
#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <algorithm>
#include <vector>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Which member and which rows each task works on.
struct Plan {
  int64_t members, chunks, rows;
  Plan(int64_t members, int64_t rows) : members(members), rows(rows) {
    const int64_t threads = at::get_num_threads();
    chunks = members >= threads ? 1 : std::min<int64_t>((threads + members - 1) / members, std::max<int64_t>(1, rows / 16));
  }
  int64_t tasks() const { return members * chunks; }
  int64_t start(int64_t chunk) const { return rows * chunk / chunks; }
};

void add_bias_relu(float* y, const float* bias, int64_t rows, int64_t width, bool relu) {
  for (int64_t r = 0; r < rows; ++r, y += width) {
    for (int64_t c = 0; c < width; ++c) {
      const float value = y[c] + bias[c];
      y[c] = relu && value < 0.f ? 0.f : value;
    }
  }
}

void mask_by(float* gradient, const float* activation, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = activation[i] > 0.f ? gradient[i] : 0.f;
}

void column_sums(const float* values, float* sums, int64_t rows, int64_t width) {
  std::fill(sums, sums + width, 0.f);
  for (int64_t r = 0; r < rows; ++r, values += width)
    for (int64_t c = 0; c < width; ++c) sums[c] += values[c];
}

// weights[member * layers + layer] is (in, out), biases (out); returns the activations of each layer, (members, rows, width).
std::vector<Tensor> run_forward(const Tensor& x, at::TensorList weights, at::TensorList biases, int64_t members) {
  const int64_t layers = weights.size() / members, rows = x.size(0);
  std::vector<Tensor> hidden;
  for (int64_t l = 0; l < layers; ++l) hidden.push_back(at::empty({members, rows, weights[l].size(1)}, x.options()));
  const Plan plan(members, rows);
  at::parallel_for(0, plan.tasks(), 1, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t m = task / plan.chunks, chunk = task % plan.chunks, first = plan.start(chunk);
      const int64_t count = plan.start(chunk + 1) - first;
      Tensor h = x.narrow(0, first, count);
      for (int64_t l = 0; l < layers; ++l) {
        const int64_t k = m * layers + l;
        Tensor y = hidden[l].select(0, m).narrow(0, first, count);
        at::mm_out(y, h, weights[k]);
        add_bias_relu(y.data_ptr<float>(), biases[k].data_ptr<float>(), count, y.size(1), l + 1 < layers);
        h = y;
      }
    }
  });
  return hidden;
}

struct Ensemble : torch::autograd::Function<Ensemble> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, at::TensorList weights, at::TensorList biases, int64_t members) {
    auto hidden = run_forward(x, weights, biases, members);
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), hidden.begin(), hidden.end() - 1);
    ctx->save_for_backward(saved);
    ctx->saved_data["members"] = members;
    ctx->saved_data["count"] = static_cast<int64_t>(weights.size());
    return hidden.back();
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const int64_t members = ctx->saved_data["members"].toInt(), n = ctx->saved_data["count"].toInt(), layers = n / members;
    const auto saved = ctx->get_saved_variables();
    const Tensor x = saved[0], gradient = gradients[0].contiguous();
    const bool need_x = ctx->needs_input_grad(0), need_weights = ctx->needs_input_grad(1);
    const Plan plan(members, x.size(0));
    std::vector<Tensor> of_weights(n * plan.chunks), of_biases(n * plan.chunks), of_x(plan.tasks());
    at::parallel_for(0, plan.tasks(), 1, [&](int64_t begin, int64_t end) {
      at::NoGradGuard no_grad;
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t m = task / plan.chunks, chunk = task % plan.chunks, first = plan.start(chunk);
        const int64_t count = plan.start(chunk + 1) - first;
        Tensor g = gradient.select(0, m).narrow(0, first, count);
        for (int64_t l = layers - 1; l >= 0; --l) {
          const int64_t k = m * layers + l, slot = k * plan.chunks + chunk;
          const Tensor& w = saved[1 + k];
          const Tensor h = (l > 0 ? saved[n + l].select(0, m) : x).narrow(0, first, count);
          if (need_weights) {
            const bool transposed = w.stride(0) == 1 && w.size(0) > 1;  // the view of a Linear's weight: give its layout back
            of_weights[slot] = transposed ? at::mm(g.t(), h).t() : at::mm(h.t(), g);
            of_biases[slot] = at::empty({g.size(1)}, g.options());
            column_sums(g.data_ptr<float>(), of_biases[slot].data_ptr<float>(), count, g.size(1));
          }
          if (l > 0 || need_x) {
            g = at::mm(g, w.t());
            if (l > 0) mask_by(g.data_ptr<float>(), h.data_ptr<float>(), g.numel());
          }
        }
        of_x[task] = g;
      }
    });
    variable_list result(2 + 2 * n);
    if (need_x) {
      result[0] = at::empty_like(x);
      for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        Tensor part = result[0].narrow(0, plan.start(chunk), plan.start(chunk + 1) - plan.start(chunk));
        part.copy_(of_x[chunk]);
        for (int64_t m = 1; m < members; ++m) part.add_(of_x[m * plan.chunks + chunk]);
      }
    }
    for (int64_t k = 0; need_weights && k < n; ++k) {
      result[1 + k] = of_weights[k * plan.chunks];
      result[1 + n + k] = of_biases[k * plan.chunks];
      for (int64_t chunk = 1; chunk < plan.chunks; ++chunk) {
        result[1 + k].add_(of_weights[k * plan.chunks + chunk]);
        result[1 + n + k].add_(of_biases[k * plan.chunks + chunk]);
      }
    }
    return result;
  }
};

Tensor ensemble(const Tensor& x, const std::vector<Tensor>& weights, const std::vector<Tensor>& biases, int64_t members) {
  if (!at::GradMode::is_enabled()) return run_forward(x, weights, biases, members).back();
  return Ensemble::apply(x, at::TensorList(weights), at::TensorList(biases), members);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("ensemble", &ensemble); }
