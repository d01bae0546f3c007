# SPDX-License-Identifier: Apache-2.0
"""llama_quantize.py F32.gguf OUT.gguf: llama.cpp's Q4_0, the embedding in Q8_0.

Run by perplexity.py --llama-cpp in an environment that has llama-cpp-python.
"""

import ctypes
import sys

import llama_cpp

parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
parameters.token_embedding_type = llama_cpp.GGML_TYPE_Q8_0
parameters.output_tensor_type = llama_cpp.GGML_TYPE_Q8_0
source, target = (name.encode() for name in sys.argv[1:])
sys.exit(llama_cpp.llama_model_quantize(source, target, ctypes.byref(parameters)))
